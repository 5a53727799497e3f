"""Can a divergence be predicted? Rules that warn, on trainings that diverge and that survive.

    python benchmarks/forecast.py
    python benchmarks/forecast.py --series series.json --json found.json
    python benchmarks/forecast.py --quick

168 small trainings of a second or two of processor time: about half diverge, the others look
alarming and survive. Each rule gets the lowest threshold at which it warns in no surviving run of
the development half; the table shows its results on the held-out half. `--series` saves the
recorded values, or loads them, so that a rule can be changed without training again.

The rule for "diverged", fixed before any detector was written. The loss on 128 fixed samples is
measured every 5 steps; no detector sees it. `best` is its lowest median of 5, `start` its first
value. The level is `best` plus half of `start - best`, and at least 30 % above `best`. A run
diverged if its training loss became NaN or Inf, or if the median of the last eighth of the measured
losses is above the level. It happened at the step after the last measurement below the level. A
warning counts if it comes before that step; the table also says how many came before the fault of
the setting had begun, which are chance hits.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from _forecast_rules import OTHERS, OURS, PUBLISHED, Combined, Rule, Scores
from _forecast_settings import DEVELOPMENT, HELD_OUT, settings
from _forecast_trainings import Series, Setting, Training

import headway

EARLY = 10
"""Steps of lead that leave time to act."""
COMBINED = "combined (logistic regression)"
CHECKS = "headway's checks as they are"
CODES = ("HD103", "HD104", "HD202", "HD207", "HD308", "HD403")
FOLDS = 5


@dataclass(frozen=True)
class Run:
    setting: Setting
    series: Series
    onset: int | None
    """The step at which it diverged; None: it survived."""


def onset_of(series: Series, steps: int) -> int | None:
    """Apply the rule above."""
    values = [value if math.isfinite(value) else math.inf for _, value in series.evaluations]
    best = min(statistics.median(values[i : i + 5]) for i in range(max(len(values) - 4, 1)))
    level = best + max(0.5 * (values[0] - best), 0.3 * abs(best))
    stopped = len(series.turn) < steps
    if not stopped and statistics.median(values[-max(len(values) // 8, 1) :]) <= level:
        return None
    below = [step for step, value in series.evaluations if value <= level]
    onset = below[-1] + 1 if below else 1
    return min(onset, len(series.turn)) if stopped else onset


def train(setting: Setting) -> Series:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the guard says is read from its record
    return Training(setting).run()


def train_all(chosen: Sequence[Setting], jobs: int) -> list[Series]:
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        found = []
        for setting, series in zip(chosen, pool.imap(train, chosen), strict=True):
            found.append(series)
            print(f"\r{len(found)} of {len(chosen)}: {setting.name:<60}", end="", file=sys.stderr)
        print(file=sys.stderr)
        return found


def load_or_train(chosen: Sequence[Setting], kept: Path | None, jobs: int) -> list[Series]:
    stored = json.loads(kept.read_text()) if kept and kept.exists() else {}
    missing = [setting for setting in chosen if repr(setting) not in stored]
    for setting, series in zip(missing, train_all(missing, jobs) if missing else [], strict=True):
        stored[repr(setting)] = asdict(series)
    if kept and missing:
        kept.write_text(json.dumps(stored))
    found = []
    for setting in chosen:
        values = stored[repr(setting)]
        for name in ("update_ratios", "weight_norms", "layer_norms"):
            values[name] = {int(step): column for step, column in values[name].items()}
        found.append(Series(**values))
    return found


# Judging the rules ---------------------------------------------------------------------------


def first_alarm(scores: Scores, threshold: float) -> int | None:
    return next((step for step, score in enumerate(scores) if score > threshold), None)


def threshold_of(scores: Sequence[Scores]) -> float:
    """The lowest threshold at which none of these runs gets a warning."""
    return max((max(one, default=-math.inf) for one in scores), default=-math.inf)


def judge(runs: Sequence[Run], alarms: Sequence[int | None]) -> dict[str, Any]:
    leads, survivors, false, lucky = [], 0, 0, 0
    for run, alarm in zip(runs, alarms, strict=True):
        if run.onset is None:
            survivors, false = survivors + 1, false + (alarm is not None)
        else:
            leads.append(run.onset - alarm if alarm is not None and alarm < run.onset else 0)
            lucky += leads[-1] > run.onset - run.setting.cause
    warned = [lead for lead in leads if lead > 0]
    return {
        "divergences": len(leads),
        "warned": len(warned),
        "warned_early": sum(lead >= EARLY for lead in warned),
        "warned_before_cause": lucky,
        "median_lead": statistics.median(warned) if warned else None,
        "survivors": survivors,
        "false_alarms": false,
    }


def out_of_fold(runs: Sequence[Run]) -> list[Scores]:
    """Scores of the combined rule for runs that it was not fitted to."""
    scores: list[Scores] = [[] for _ in runs]
    for fold in range(FOLDS):
        fitted = Combined([(r.series, r.onset) for i, r in enumerate(runs) if i % FOLDS != fold])
        for index in range(fold, len(runs), FOLDS):
            scores[index] = fitted(runs[index].series)
    return scores


def result_row(
    name: str, threshold: float, halves: dict[str, list[Run]], scores: dict[str, list[Scores]]
) -> dict[str, Any]:
    alarms = {half: [first_alarm(one, threshold) for one in scores[half]] for half in halves}
    judged = {half: judge(runs, alarms[half]) for half, runs in halves.items()}
    return {"rule": name, "threshold": threshold, **judged, "alarms": alarms[HELD_OUT]}


def check_alarm(run: Run) -> int | None:
    return min((step for step, code in run.series.findings if code in CODES), default=None)


def all_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    halves = {half: [r for r in runs if r.setting.half == half] for half in (DEVELOPMENT, HELD_OUT)}
    survivors = [run.onset is None for run in halves[DEVELOPMENT]]
    rows = []
    for name, threshold in PUBLISHED.items():
        scores = {half: [OTHERS[name](r.series) for r in some] for half, some in halves.items()}
        rows.append(result_row(f"{name}, as published", threshold, halves, scores))
    alarms = {half: [check_alarm(run) for run in some] for half, some in halves.items()}
    judged = {half: judge(some, alarms[half]) for half, some in halves.items()}
    rows.append({"rule": CHECKS, "threshold": None, **judged, "alarms": alarms[HELD_OUT]})
    fitted = Combined([(run.series, run.onset) for run in halves[DEVELOPMENT]])
    rules: dict[str, Rule] = {**OTHERS, **OURS, COMBINED: fitted}
    for name, rule in rules.items():
        scores = {half: [rule(r.series) for r in some] for half, some in halves.items()}
        if name == COMBINED:
            scores[DEVELOPMENT] = out_of_fold(halves[DEVELOPMENT])
        quiet = [s for s, alive in zip(scores[DEVELOPMENT], survivors, strict=True) if alive]
        rows.append(result_row(name, threshold_of(quiet), halves, scores))
    return rows


# Output --------------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| rule | warned, development | false alarms, development | warned, held out "
        f"| at least {EARLY} steps before | before its cause | median lead, steps "
        "| false alarms, held out |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        tuned, held = row[DEVELOPMENT], row[HELD_OUT]
        lead = "" if held["median_lead"] is None else f"{held['median_lead']:g}"
        cells = [
            row["rule"],
            f"{tuned['warned']} of {tuned['divergences']}",
            f"{tuned['false_alarms']} of {tuned['survivors']}",
            f"{held['warned']} of {held['divergences']}",
            str(held["warned_early"]),
            str(held["warned_before_cause"]),
            lead,
            f"{held['false_alarms']} of {held['survivors']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def expectations(runs: Sequence[Run]) -> list[str]:
    """The runs that did not do what was expected of them."""
    return [
        f"{run.setting.half}: {run.setting.name}: expected that it {run.setting.expected}"
        for run in runs
        if (run.onset is not None) != (run.setting.expected == "diverges")
    ]


def summary(runs: Sequence[Run], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPU only",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "headway": headway.__version__,
        "unexpected": expectations(runs),
        "runs": [
            {
                "name": run.setting.name,
                "half": run.setting.half,
                "expected": run.setting.expected,
                "steps": run.setting.steps,
                "onset": run.onset,
            }
            for run in runs
        ],
        "rules": list(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="every tenth training")
    parser.add_argument("--series", type=Path, help="save the recorded values here, or load them")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = settings()[:: 10 if options.quick else 1]
    found = load_or_train(chosen, options.series, options.jobs)
    runs = [Run(s, one, onset_of(one, s.steps)) for s, one in zip(chosen, found, strict=True)]
    for line in expectations(runs):
        print(line)
    rows = all_rows(runs)
    print(f"\n{table(rows)}")
    if options.json:
        options.json.write_text(json.dumps(summary(runs, rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
