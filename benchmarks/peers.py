"""Compares headway with other tools on one corpus: faults found, causes, false alarms, and cost.

    python benchmarks/peers.py --setup             # once: installs the tools, in environments
    python benchmarks/peers.py                     # everything; writes results and docs/peers.md
    python benchmarks/peers.py --set both          # the main corpus too, not only the blind set
    python benchmarks/peers.py --set public        # bugs from public threads; writes nothing
    python benchmarks/peers.py --only trainpulse --limit 10        # a short run; writes nothing
    python benchmarks/peers.py --resume FILE.jsonl                 # continue an interrupted run
    python benchmarks/peers.py --docs                              # docs/peers.md from the results
    python benchmarks/peers.py --traps                             # file scanners, on our traps

Every tool gets the same scripts and the same number of optimizer steps, in a separate process,
inserted where its documentation says. Two rates are given: over all scripts, and over those the
tool can run at all. A report counts from the tool's own level of warning on. The tool "named the
cause" if one of the rules that reported something means this fault (`means` in `peer_tools/`), for
headway only if its first cause is the right one. By default the tools are compared on the blind
set: its author did not know the checks, while headway was tuned on half of the main corpus.
Only `--setup` uses the network.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT / "tests"))

from peer_tools import page, setup, traps  # noqa: E402
from peer_tools.base import Tool  # noqa: E402
from peer_tools.page import ORDER as TOOLS  # noqa: E402
from support.corpus_runs import Entry, entries  # noqa: E402

RESULTS = HERE / "results"
WALL_S = 300
PARTS = ("corpus", "overhead", "checkpoints")


class Server:
    """A process with a tool loaded; each job runs in a fork of it."""

    def __init__(self, python: Path, tool: str) -> None:
        self.process = subprocess.Popen(
            [str(python), str(HERE / "peer_tools" / "under.py"), tool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps(job), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"state": "not installed", "alarms": [], "why": "the tool did not load"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment() -> dict[str, str]:
    """No network, one thread."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(HERE), str(ROOT / "tests")]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "NO_COLOR": "1",
    }


def on_ranks(python: Path, tool: str, entry: Entry, job: dict[str, Any]) -> dict[str, Any]:
    """Run a script of several ranks under torchrun; returns the answer of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        job = {**job, "out": f"{folder}/answer"}
        command = [str(python), "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={entry.ranks}", str(HERE / "peer_tools" / "under.py")]
        began = time.perf_counter()
        try:
            subprocess.run(
                [*command, tool, json.dumps(job)],
                cwd=folder,
                env=environment(),
                capture_output=True,
                timeout=WALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"state": "too slow", "alarms": [], "seconds": WALL_S}
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("answer*"))]
        if not found:
            return {"state": "broke", "alarms": [], "why": "no rank answered"}
        # A rank fails if another one has stopped, so prefer an answer with alarms.
        best = next((item for item in found if item["alarms"]), None)
        best = best or next((item for item in found if item["state"] == "ran"), found[0])
        return {**best, "seconds": round(time.perf_counter() - began, 2)}


def judged(entry: Entry, tool: Tool, answer: dict[str, Any]) -> dict[str, Any]:
    """Whether an answer is right."""
    accepted = {*entry.codes, *entry.also}
    rules = [alarm["rule"] for alarm in answer["alarms"]]
    if "first" in answer:
        cause = answer["first"] in entry.codes
    else:
        cause = any(tool.means.get(rule, frozenset()) & accepted for rule in rules)
    wanted = entry.line_numbers()
    lines = {line for alarm in answer["alarms"] for line in alarm["lines"]}
    return {
        "healthy": entry.healthy,
        "spoke": bool(rules),
        "cause": bool(cause) and not entry.healthy,
        "line": bool(wanted & lines) if wanted else None,
        "rules": list(dict.fromkeys(rules)),
    }


def corpus_jobs(chosen: list[Entry], tool: Tool) -> list[Entry]:
    if not tool.sample:
        return chosen
    numeric = [e for e in chosen if {"HD101", "HD201", "HD202", "HD112", "HD501"} & {*e.codes}]
    healthy = [e for e in chosen if e.healthy][: tool.sample // 3]
    return [*numeric[: tool.sample - len(healthy)], *healthy]


def run_corpus(
    name: str, chosen: list[Entry], pythons: dict[str, Path], done: set[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    module = TOOLS[name]
    tool: Tool = importlib.import_module(f"peer_tools.{module}").TOOL()
    python = pythons[tool.environment]
    server: Server | None = None
    for entry in corpus_jobs(chosen, tool):
        if (name, entry.file) in done:
            continue
        job = {
            "script": str(entry.path),
            "steps": entry.steps,
            "arguments": ["--seed", "0"],
            "limit": WALL_S,
        }
        text = entry.path.read_text(encoding="utf-8")
        if not all(word in text for word in tool.needs):
            why = "not written for " + " and ".join(tool.needs)
            answer = {"state": "cannot", "alarms": [], "why": why}
        elif entry.ranks > 1:
            answer = on_ranks(python, module, entry, job)
        else:
            server = server or Server(python, module)
            answer = server.ask(job)
        row = {"part": "corpus", "tool": name, "file": entry.file, "half": entry.half}
        yield {**row, **judged(entry, tool, answer), **answer}
    if server is not None:
        server.close()


class Book:
    """Results, appended to a file one by one, so that an interrupted run can be resumed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        if path is not None and path.is_file():
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            # A busy machine may have been too slow for a script: run it again.
            self.rows = [row for row in rows if row["state"] != "too slow"]

    def write(self, row: dict[str, Any]) -> None:
        row = json.loads(
            json.dumps(row).replace(f"{ROOT}/", "")
        )  # paths of this machine are not part of the result
        with self.lock:
            self.rows.append(row)
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        rules = ", ".join(row.get("rules", [])) or row.get("told", "")
        why = " " + str(row.get("why", "")).strip().rpartition("\n")[2][:160]
        place = f"{row['tool']:16} {row.get('file', row['part'])}"
        print(f"{place}: {row['state']} {rules}{why if row.get('why') else ''}", flush=True)


def apart(script: str, python: Path, book: Book, *more: str) -> None:
    """Run a part of the comparison that is a separate script and prints rows of JSON."""
    command = [str(python), str(HERE / "peer_tools" / script), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                book.write(json.loads(line))


def header(pythons: dict[str, Path], jobs: int) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPU only, one thread a run",
        "jobs": jobs,
        "versions": {name: setup.versions(python) for name, python in pythons.items()},
        "setup": setup.problems(pythons["main"].parents[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", action="store_true", help="create the environments of the tools")
    parser.add_argument("--docs", action="store_true", help="write docs/peers.md from the results")
    parser.add_argument("--traps", action="store_true", help="run file scanners on our own traps")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-peers")
    parser.add_argument("--only", action="append", choices=[*TOOLS, *PARTS[1:]])
    parser.add_argument("--limit", type=int, help="maximum number of scripts of each set")
    parser.add_argument("--script", default="", help="part of a script's name")
    parser.add_argument("--set", choices=["blind", "proper", "both", "public"], default="blind")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--resume", type=Path, help="the file of an interrupted run")
    args = parser.parse_args()
    pythons = setup.pythons(args.venv)
    if args.setup:
        setup.make(args.venv, ROOT)
        return
    if args.docs:
        page.write(ROOT, page.latest(RESULTS))
        return
    if not pythons["main"].exists():
        print("the tools are not installed; run: python benchmarks/peers.py --setup")
        return
    if args.traps:
        traps.run(pythons["main"], ROOT, RESULTS)
        return
    whole = not (args.only or args.limit or args.script or args.set == "public")
    stem = RESULTS / f"{time.strftime('%Y-%m-%d')}-peers"
    book = Book(args.resume or (stem.with_suffix(".partial.jsonl") if whole else None))
    chosen = _chosen(args.set, args.limit, args.script)
    names = [name for name in TOOLS if not args.only or name in args.only]
    done = {(row["tool"], row["file"]) for row in book.rows if row["part"] == "corpus"}

    def one(name: str) -> None:
        for row in run_corpus(name, chosen, pythons, done):
            book.write(row)

    began = time.perf_counter()
    # Measure times first, while nothing else runs.
    seen = {row["part"] for row in book.rows}
    for part in ("overhead", "checkpoints"):
        if part not in seen and (not args.only or part in args.only):
            apart(f"{part}.py", pythons["main"], book)
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, names))
    # The total time of a resumed run is not known.
    minutes = None if args.resume else round((time.perf_counter() - began) / 60, 1)
    record = {**header(pythons, args.jobs), "minutes": minutes, "rows": book.rows}
    print()
    print(page.tables(record))
    if whole:
        stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        page.write(ROOT, record)
        if book.path is not None and not args.resume:
            book.path.unlink()


def _chosen(which: str, limit: int | None, part: str) -> list[Entry]:
    found: list[Entry] = []
    for name, halves in page.SETS.items():
        if which == name or (which == "both" and name != "public"):
            these = [e for e in entries() if e.half in halves]
            found += [e for e in these if part in e.file][:limit]
    return found


if __name__ == "__main__":
    main()
