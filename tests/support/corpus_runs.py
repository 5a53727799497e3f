"""The corpus: its manifests, `headway check` over one of its scripts, and how well it did.

Scripts run in a fork of a process that has torch already: what takes longest is done once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
SOURCES = Path(__file__).resolve().parents[2] / "src"
HALVES = {
    "tuned": "manifest.tuned.toml",
    "held-out": "manifest.heldout.toml",
    "blind": "manifest.blind.toml",
    "public": "manifest.public.toml",
}
"""The corpus proper is in two halves; `blind` and `public` are other sets, see
`benchmarks/corpus.py`."""
LIMIT_S = 240
FIXED = "#fixed"
"""Ends the name of an entry that is the fixed version of a script."""


@dataclass(frozen=True)
class Entry:
    """One script and what should be said of it."""

    file: str
    number: int
    name: str
    family: str
    codes: tuple[str, ...]
    also: tuple[str, ...]
    line: str | None
    steps: int
    ranks: int
    half: str
    folder: Path = CORPUS
    other_lines: tuple[str, ...] = ()
    """Lines that are as right as `line`: the other half of a pair that does not fit together."""
    fix: tuple[tuple[str, str], ...] = ()
    """Texts of the script and what replaces them: this entry is the fixed version of `file`."""
    novel: bool = False
    """Of a mechanism that headway had not been worked on for before its first run."""
    source: str = ""
    mechanism: str = ""

    @property
    def healthy(self) -> bool:
        return not self.codes

    @property
    def path(self) -> Path:
        script = self.folder / self.file.removesuffix(FIXED)
        if not self.fix:
            return script
        text = script.read_text(encoding="utf-8")
        for old, new in self.fix:
            assert text.count(old) == 1, f"{self.file}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        fixed = Path(_fixed_folder()) / script.name
        fixed.write_text(text, encoding="utf-8")
        return fixed

    def line_number(self) -> int | None:
        """Of the line to be named, where there is one."""
        return None if self.line is None else self._at(self.line)

    def line_numbers(self) -> set[int]:
        """Of all lines that are right."""
        named = () if self.line is None else (self.line, *self.other_lines)
        return {self._at(text) for text in named}

    def _at(self, wanted: str) -> int:
        text = self.path.read_text(encoding="utf-8")
        if "\n" in wanted:  # the last of several lines: it is there more than once
            assert text.count(wanted) == 1, f"{self.file}: {wanted!r}"
            return text[: text.index(wanted) + len(wanted)].count("\n") + 1
        lines = text.splitlines()
        at = [number for number, text in enumerate(lines, 1) if wanted in text]
        assert len(at) == 1, f"{self.file}: {wanted!r} is on lines {at}"
        return at[0]


@functools.cache
def _fixed_folder() -> str:
    """Where fixed versions are written; gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="headway-fixed-")
    owner = os.getpid()
    # Forks inherit the exit handler; only the process that made the folder removes it.
    atexit.register(lambda: shutil.rmtree(folder) if os.getpid() == owner else None)
    return folder


@dataclass(frozen=True)
class Mark:
    """How one script was judged."""

    entry: Entry
    seed: int
    detected: bool
    right: bool
    line: bool | None
    step: int | None
    """Of the earliest right finding."""
    first: str | None
    found: tuple[str, ...]
    """Codes at warning or above."""
    crashed: bool
    seconds: float
    problem: str = ""

    @property
    def alarm(self) -> bool:
        return self.entry.healthy and bool(self.found or self.problem)


def entries(folder: Path = CORPUS) -> list[Entry]:
    """Every script of the corpus, or of one that is made alike."""
    found: list[Entry] = []
    for half, name in HALVES.items():
        if not (folder / name).is_file():
            continue
        data = tomllib.loads((folder / name).read_text(encoding="utf-8"))
        for item in data["script"]:
            entry = _entry(item, half, folder)
            found.append(entry)
            if "fix" in item:
                fix = tuple((old, new) for old, new in item["fix"])
                found.append(
                    replace(entry, file=entry.file + FIXED, codes=(), also=(), line=None, fix=fix)
                )
    return found


def _entry(item: dict[str, Any], half: str, folder: Path) -> Entry:
    return Entry(
        file=item["file"],
        number=item["number"],
        name=item["name"],
        family=item["family"],
        codes=tuple(item["codes"]),
        also=tuple(item.get("also", ())),
        line=item.get("line"),
        steps=item["steps"],
        ranks=item.get("ranks", 1),
        half=half,
        folder=folder,
        other_lines=tuple(item.get("other_lines", ())),
        novel=item.get("novel", False),
        source=item.get("source", ""),
        mechanism=item.get("mechanism", ""),
    )


def check(entry: Entry, seed: int = 0, *, steps: int | None = None) -> Mark:
    """Run `headway check` over a script and judge what it says."""
    began = time.perf_counter()
    options = ["--max-steps", str(steps or entry.steps), "--format", "json"]
    arguments = ["check", str(entry.path), *options, "--", "--seed", str(seed)]
    told = _torchrun(entry, arguments) if entry.ranks > 1 else run_forked(arguments)
    return judge(entry, seed, told, time.perf_counter() - began)


def judge(entry: Entry, seed: int, told: str, seconds: float) -> Mark:
    """How good an answer is."""
    try:
        report = json.loads(told[told.index("{") :])
    except ValueError:
        problem = f"no report: {told[-300:]!r}"
        return Mark(entry, seed, False, False, None, None, None, (), True, seconds, problem=problem)
    loud = [item for item in report["findings"] if item["severity"] != "info"]
    accepted = {*entry.codes, *entry.also}
    fitting = [item for item in loud if item["code"] in accepted]
    exact = [item for item in loud if item["code"] in entry.codes]
    causes = [cause["code"] for cause in report["causes"]]
    first = next((code for code in causes if any(i["code"] == code for i in loud)), None)
    lines = entry.line_numbers()
    return Mark(
        entry=entry,
        seed=seed,
        detected=bool(fitting),
        right=first in entry.codes,
        line=any(item["where"]["line"] in lines for item in exact) if lines else None,
        step=min((i["step"] for i in fitting if i["step"] is not None), default=None),
        first=first,
        found=tuple(dict.fromkeys(item["code"] for item in loud)),
        crashed=bool(report.get("unreached")),
        seconds=seconds,
    )


def check_all(
    jobs: Sequence[tuple[Entry, int]], workers: int, said: Callable[[Mark], None] = lambda _: None
) -> list[Mark]:
    """Many at a time."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    marks = []
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(check, entry, seed) for entry, seed in jobs]):
            marks.append(done.result())
            said(marks[-1])
    return sorted(marks, key=lambda mark: (mark.entry.half, mark.entry.file, mark.seed))


def run_forked(arguments: list[str]) -> str:
    """What a command prints, in a fork of this process: torch is imported once."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_in_child, args=(arguments, out, folder))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
            return f"took longer than {LIMIT_S} s"
        return out.read_text(encoding="utf-8") if out.is_file() else ""


def _in_child(arguments: list[str], out: Path, folder: str) -> None:
    gc.freeze()  # models that the parent has left alive are not the script's
    # A daemon may have no children of its own, and loaders want workers.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    os.chdir(folder)
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    told = io.StringIO()
    from headway.cli.main import cli

    with contextlib.suppress(SystemExit), _speaking(told):
        cli.main(arguments, prog_name="headway")
    text = told.getvalue()
    out.write_text(text or (Path(folder) / "log").read_text(errors="replace"), encoding="utf-8")
    os._exit(0)


@contextlib.contextmanager
def _speaking(told: io.StringIO) -> Iterator[None]:
    """What the command says on stdout; what scripts print there goes to the log."""
    with contextlib.redirect_stdout(told):
        yield


def _torchrun(entry: Entry, arguments: list[str]) -> str:
    path = os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={entry.ranks}",
                "-m",
                "headway",
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            check=False,
        )
    return done.stdout or done.stderr


def summary(marks: Sequence[Mark]) -> dict[str, Any]:
    """Rates over a set of marks."""
    faults = [mark for mark in marks if not mark.entry.healthy]
    lined = [mark for mark in faults if mark.line is not None]
    healthy = [mark for mark in marks if mark.entry.healthy]
    steps = sorted(mark.step for mark in faults if mark.step is not None)
    return {
        "faults": len(faults),
        "detected": sum(mark.detected for mark in faults),
        "right first cause": sum(mark.right for mark in faults),
        "with a line": len(lined),
        "right line": sum(bool(mark.line) for mark in lined),
        "median step of detection": steps[len(steps) // 2] if steps else None,
        "healthy runs": len(healthy),
        "healthy scripts": len({mark.entry.file for mark in healthy}),
        "false alarms": sum(mark.alarm for mark in healthy),
    }
