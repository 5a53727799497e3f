"""Cost of an incident: a bad step is re-run, located, and remedies are tested; measured in steps.

    python benchmarks/incident_cost.py                  # CPU: 10M parameters, 148 tensors
    python benchmarks/incident_cost.py --device cuda    # a transformer of 124M
    python benchmarks/incident_cost.py --count --before ../old/src

One training. Some batches make its loss NaN (a logarithm of 0 in one sample); the time from that
step to the next batch is compared with the median step of the same run. Prints the median over the
incidents, which includes everything: the traced pass, the tests of remedies, the passes that decide
between batch and weights, and writing the incident's folder.

`--count` counts instead what incidents of a transformer with 16 blocks execute, with this source
tree and with another one: the ops that are examined, the values that the host waits for, Python's
opcodes. The origin must be the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _incident_counts import FAULTS
from guard_overhead import CASES, Training, synchronise
from torch import Tensor

from headway import Guard, Policy

HERE = Path(__file__).resolve()
COUNTS = ("ops examined", "values read", "opcodes", "passes")
EVERY = 12
"""Steps from one incident to the next."""
LIMIT = 12.0
"""Maximum time of an incident, in steps."""


def loss_of(logits: Tensor, targets: Tensor, worth: Tensor) -> Tensor:
    """Cross entropy weighted by the logarithm of each sample's weight."""
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (each.view_as(targets).mean(dim=1) * torch.log(worth)).mean()


def measure(device: str, incidents: int, run_dir: Path | None) -> dict[str, Any]:
    case = CASES[device][0]
    training = Training(case, device)
    policy = Policy(replays=incidents, replay_gap=EVERY // 2, halt=False)
    guard = Guard(training.model, training.optimizer, policy=policy, run_dir=run_dir)
    model, optimizer = training.model, training.optimizer
    count = EVERY * (incidents + 1)
    times: list[float] = []
    synchronise(device)
    began = time.perf_counter()
    for worth in guard(worths(count, case.batch, device)):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(training.ids[:, :-1])
            loss = loss_of(logits, training.ids[:, 1:], worth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if guard.replaying:
            continue
        synchronise(device)
        now = time.perf_counter()
        times.append(now - began)
        began = now
    guard.close()
    found = guard.explanations
    bad = [at for at in range(count) if is_bad(at)]
    # The explanation of a step takes place before the next step, and on CUDA within it.
    usual = statistics.median(
        t for at, t in enumerate(times) if at not in bad and at - 1 not in bad
    )
    ratios = [(times[at] + times[at + 1]) / usual - 1 for at in bad[: len(found)]]
    return {
        "case": case.name,
        "step_ms": round(1e3 * usual, 2),
        "steps": round(statistics.median(ratios), 2),
        "each": [round(ratio, 2) for ratio in ratios],
        "passes": [item.passes for item in found],
        "named": sum(1 for item in found if item.origin and item.origin.op == "log"),
        "cured": sum(1 for item in found if item.cure is not None),
    }


def is_bad(at: int) -> bool:
    return at % EVERY == EVERY - 2


def worths(count: int, batch: int, device: str) -> Any:
    """The weight of each sample; in some batches one weight is 0."""
    for at in range(count):
        worth = torch.full((batch,), 3.0, device=device)
        if is_bad(at):
            worth[1] = 0.0
        yield worth


def count(before: Path | None) -> list[dict[str, Any]]:
    sources = {} if before is None else {"before": before.resolve()}
    sources["now"] = HERE.parents[1] / "src"
    results = []
    for fault in FAULTS:
        found = {
            label: json.loads(
                subprocess.run(
                    [sys.executable, str(HERE.parent / "_incident_counts.py"), str(source), fault],
                    check=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                ).stdout
            )
            for label, source in sources.items()
        }
        same = len({json.dumps([each["origin"], each["fix"]]) for each in found.values()}) == 1
        results.append({"fault": fault, "same origin and fix": same, **found})
        for label, each in found.items():
            counts = ", ".join(f"{each[what]:,} {what}" for what in COUNTS)
            print(f"{fault:9}{label:8}{counts}; {each['origin']}")
        print(f"{fault:9}{'the same origin and fix' if same else 'ANOTHER ORIGIN OR FIX'}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--incidents", type=int, default=5)
    parser.add_argument("--count", action="store_true", help="count ops and opcodes")
    parser.add_argument("--before", type=Path, help="the `src` of another version to compare with")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.count:
        save(args, {"counts": count(args.before)})
        return
    if args.device == "cpu":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args.device, args.incidents, Path(folder))
    print(
        f"{result['case']}: a step takes {result['step_ms']} ms, an incident "
        f"{result['steps']} steps (limit {LIMIT:g}; each: {result['each']}, "
        f"{result['passes']} passes); the op was named in {result['named']} and a fix found in "
        f"{result['cured']} of {len(result['each'])}"
    )
    save(args, result)


def save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if not args.json:
        return
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
    }
    args.json.write_text(json.dumps({**about, **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
