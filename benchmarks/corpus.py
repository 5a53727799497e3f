"""How well `headway check` tells what is wrong with a training script, and leaves well alone.

    python benchmarks/corpus.py              # every fault once, healthy scripts with 10 seeds
    python benchmarks/corpus.py --seeds 1 --half held-out --json found.json

80 faulty and 32 healthy look-alike scripts, and some longer ones as people publish them, in two
halves: checks were tuned on one; the other was written apart, measured once unseen, and what that
showed was fixed. A third set, `blind`, was written by someone who saw neither the checks nor the
other scripts; its first run gave one alarm, which was mended. For each fault: was it found, is the
first cause the right one, is the exact line named, at which step. For each healthy script and seed:
was anything said at warning or above.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from support.corpus_runs import CORPUS, HALVES, Mark, check_all, entries, summary

import headway
import headway.preflight.runner  # imported here, once, and not in every fork

FAMILIES = ("loop", "graph", "loss", "data", "mode", "precision", "healthy", "public")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="for healthy scripts")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="another corpus made alike")
    parser.add_argument("--half", choices=[*HALVES, "both"], default="both")
    parser.add_argument("--only", default="", help="part of a file's name")
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    chosen = [
        entry
        for entry in entries(args.corpus.resolve())
        if entry.half in (("tuned", "held-out") if args.half == "both" else (args.half,))
        and args.only in entry.file
        and args.family in (None, entry.family)
    ]
    jobs = [(entry, seed) for entry in chosen for seed in range(args.seeds if entry.healthy else 1)]
    marks = check_all(jobs, args.jobs, said=_say)
    print()
    _table(marks)
    if args.json:
        args.json.write_text(json.dumps(_record(marks), indent=2) + "\n", encoding="utf-8")


def _say(mark: Mark) -> None:
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


if __name__ == "__main__":
    main()
