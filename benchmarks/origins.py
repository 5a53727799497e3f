"""How often a bad step is explained correctly: the set of origins, each as a guarded training.

    python benchmarks/origins.py                  # CPU: plain, bfloat16 and float16 autocast
    python benchmarks/origins.py --device cuda

Small trainings of many kinds (tests/explain/origin_set), each with one bad step whose line, op,
module, kind, samples and loss component are known, half of them with an intended -inf elsewhere.
Prints how many were explained correctly, and how often the first remedy of the list cured the step.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from explain.origin_set import SCENARIOS
from explain.origin_set.guarded import for_a_guard, guarded
from explain.origin_set.scenario import Case
from explain.origin_set.score import score, totals

from headway.explain.explanation import Explanation

OF_THE_STATE = ("carried-state",)
"""Kinds of origin in an earlier step: there is advice, but no remedy to test on this step."""


def measure(device: str, precision: torch.dtype | None) -> dict[str, Any]:
    explanations: list[Explanation] = []

    def explain(case: Case) -> Explanation:
        explanations.append(guarded(case))
        return explanations[-1]

    marks = score(explain, [each for each in SCENARIOS if for_a_guard(each)], device, precision)
    located = [each for each in explanations if each.origin]
    curable = [each for each in located if each.origin.kind not in OF_THE_STATE]
    first = [each for each in curable if each.trials and each.trials[0].tried == "cured"]
    return {
        **{name: list(counts) for name, counts in totals(marks).items()},
        "first remedy cures": [len(first), len(curable)],
        "passes": statistics.median(each.passes for each in explanations),
        "most passes": max(each.passes for each in explanations),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.getLogger("headway").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {}
    for precision in (None, torch.bfloat16, torch.float16):
        name = "plain" if precision is None else str(precision).removeprefix("torch.")
        found[name] = result = measure(args.device, precision)
        said = [
            f"{aspect} {value[0]}/{value[1]}" if isinstance(value, list) else f"{aspect} {value:g}"
            for aspect, value in result.items()
        ]
        print(f"{name}: {', '.join(said)}")
    if args.json:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        }
        args.json.write_text(json.dumps({**about, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
