"""How often `headway check` finds the fault of a training script, and how often it raises an alarm
on a healthy one.

    python benchmarks/corpus.py              # every fault once, healthy scripts with 10 seeds
    python benchmarks/corpus.py --seeds 1 --half held-out --json found.json
    python benchmarks/corpus.py --seeds 1 --half public --json benchmarks/results/DATE-public.json
    python benchmarks/corpus.py --docs       # docs/public-corpus.md from the results

80 faulty scripts, 32 healthy ones that look similar, and some longer ones as people publish them,
in two halves: checks were tuned on one; the other was written separately and measured once unseen,
and the misses were then fixed. A third set, `blind`, was written by someone who saw neither the
checks nor the other scripts; its first run gave one false alarm, which was fixed. A fourth,
`public`, has bugs of public threads, each with its fixed version (docs/public-corpus.md). For each
fault: was it found, is the first cause the right one, is the exact line named, at which step. For
each healthy script and seed: was anything reported at warning or above.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from support.corpus_runs import CORPUS, HALVES, Entry, Mark, check_all, entries, summary

import headway
import headway.preflight.runner  # imported here, once, and not in every fork

ROOT = CORPUS.parent
BEGIN, END = "<!-- written by benchmarks/corpus.py -->", "<!-- end of what it wrote -->"
FAMILIES = ("loop", "graph", "loss", "data", "mode", "precision", "healthy", "public")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="for healthy scripts")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="another corpus")
    parser.add_argument("--half", choices=[*HALVES, "both"], default="both")
    parser.add_argument("--only", default="", help="parts of file names, with commas")
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write docs/public-corpus.md")
    args = parser.parse_args()
    if args.docs:
        write_page()
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    chosen = [
        entry
        for entry in entries(args.corpus.resolve())
        if entry.half in (("tuned", "held-out") if args.half == "both" else (args.half,))
        and any(part in entry.file for part in args.only.split(","))
        and args.family in (None, entry.family)
    ]
    jobs = [(entry, seed) for entry in chosen for seed in range(args.seeds if entry.healthy else 1)]
    marks = check_all(jobs, args.jobs, said=_print_mark)
    print()
    _table(marks)
    if args.json:
        args.json.write_text(json.dumps(_record(marks), indent=2) + "\n", encoding="utf-8")


def _print_mark(mark: Mark) -> None:
    entry = mark.entry
    if entry.healthy:
        state = "ALARM " + ", ".join(mark.found) if mark.found else mark.problem or "quiet"
    else:
        state = "found" if mark.detected else "MISSED"
        if mark.detected and not mark.right:
            state += ", first cause " + str(mark.first)
        if mark.line is False:
            state += ", line not named"
        state += f" [{', '.join(mark.found)}] wanted {'/'.join(entry.codes)}"
        state += f" {mark.problem}" if mark.problem else ""
    print(f"{entry.file} seed {mark.seed}: {state} ({mark.seconds:.0f} s)", flush=True)


def _table(marks: list[Mark]) -> None:
    print(f"{'':22} faults found  first  lines      healthy alarms")
    rows = [("all", marks)]
    rows += [(half, [m for m in marks if m.entry.half == half]) for half in HALVES]
    rows += [(name, [m for m in marks if m.entry.family == name]) for name in FAMILIES]
    for name, some in rows:
        if not some:
            continue
        found = summary(some)
        share = [
            f"{found[key]}/{found[of]}" if found[of] else "-"
            for key, of in (
                ("detected", "faults"),
                ("right first cause", "faults"),
                ("right line", "with a line"),
                ("false alarms", "healthy runs"),
            )
        ]
        print(f"{name:22} {share[0]:>12} {share[1]:>7} {share[2]:>6} {share[3]:>14}")


def _record(marks: list[Mark]) -> dict[str, object]:
    halves = {half: [m for m in marks if m.entry.half == half] for half in HALVES}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "headway": headway.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPU only",
        "all": summary(marks),
        "halves": {half: summary(some) for half, some in halves.items() if some},
        "families": {
            name: summary([m for m in marks if m.entry.family == name]) for name in FAMILIES
        },
        "scripts": [
            {
                "file": mark.entry.file,
                "half": mark.entry.half,
                "seed": mark.seed,
                "novel": mark.entry.novel,
                "wanted": mark.entry.codes,
                "found": mark.found,
                "first": mark.first,
                "detected": mark.detected,
                "right": mark.right,
                "line": mark.line,
                "step": mark.step,
            }
            for mark in marks
        ],
    }


def write_page() -> None:
    path = ROOT / "docs" / "public-corpus.md"
    head, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    path.write_text(f"{head}{BEGIN}\n\n{public_tables()}\n{END}{tail}", encoding="utf-8")
    print(f"written: {path.relative_to(ROOT)}")


def public_tables() -> str:
    """The runs over the public bugs, and each bug: a first run never changes."""
    results = ROOT / "benchmarks" / "results"
    first = sorted(results.glob("*-public-first*.json"))
    latest = sorted([*results.glob("*-public.json"), *results.glob("*-public-[0-9]*.json")])
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in first]
    runs = {f"first run of {_numbers(run)}": run for run in parts}
    for file in latest:  # a later run of the same bugs replaces an earlier one
        run = json.loads(file.read_text(encoding="utf-8"))
        runs[f"latest run of {_numbers(run)}"] = run
    lines = [
        "| run | bugs | found | right first cause | right line | fixed versions alarmed |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        title = f"{name}, {run['date']}, headway {run['headway']}, torch {run['torch']}"
        scripts = run["scripts"]
        lines.append(_run_line(title, scripts))
        lines.append(_run_line("its new mechanisms alone", [r for r in scripts if r["novel"]]))
    lines += [
        "",
        "| bug | what is wrong | expected | first run | latest run |",
        "|---|---|---|---|---|",
    ]
    known = [run for name, run in runs.items() if name.startswith("latest")]
    marks = [
        {row["file"]: row for run in some for row in run["scripts"]} for some in (parts, known)
    ]
    for entry in entries():
        if entry.half == "public" and not entry.healthy:
            lines.append(_bug_line(entry, [rows.get(entry.file) for rows in marks]))
    return "\n".join(lines) + "\n"


def _numbers(run: dict[str, Any]) -> str:
    """The bugs of a run: p001 to p101."""
    numbers = [Path(row["file"]).name.partition("_")[0] for row in run["scripts"]]
    return f"{min(numbers)} to {max(numbers)}"


def _run_line(name: str, rows: list[dict[str, Any]]) -> str:
    bugs = [row for row in rows if row["wanted"]]
    fixed = [row for row in rows if not row["wanted"]]
    lined = [row for row in bugs if row["line"] is not None]
    cells = [name, str(len(bugs))]
    for some, number in (
        (sum(row["detected"] for row in bugs), len(bugs)),
        (sum(row["right"] for row in bugs), len(bugs)),
        (sum(row["line"] for row in lined), len(lined)),
        (sum(bool(row["found"]) for row in fixed), len(fixed)),
    ):
        cells.append(f"{some} of {number} ({100 * some / max(number, 1):.0f} %)")
    return "| " + " | ".join(cells) + " |"


def _bug_line(entry: Entry, rows: list[dict[str, Any] | None]) -> str:
    place = "/".join(entry.source.split("/")[3:5]) + "#" + entry.source.rpartition("/")[2]
    cells = [f"p{entry.number:03d} [{place}]({entry.source})", entry.mechanism]
    cells.append(", ".join(entry.codes))
    for row in rows:
        if row is None:
            cells.append("not run")
        elif row["right"]:
            cells.append("right" if row["line"] is not False else "right, another line")
        else:
            cells.append(f"{row['first']} first" if row["first"] else "missed")
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
