"""Cost of each tool: a step with it against the same step without it, alternating in one process.

    python overhead.py [--rounds 7] [--steps 4]     # one row of JSON per tool

The model is the transformer of `guard_overhead.py` (10.6M parameters, 150 tensors). Each round
creates a new training for each variant; the ratio to the plain step is computed within the round,
in processor time, so that other processes do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "src"))

import torch  # noqa: E402
from guard_overhead import CASES, Training  # noqa: E402

from peer_tools.stabilityguard_tool import guarded  # noqa: E402
from peer_tools.trainpulse_tool import norm_of  # noqa: E402

Stepper = Callable[[], None]


@contextlib.contextmanager
def plain(training: Training) -> Iterator[Stepper]:
    yield training.step


@contextlib.contextmanager
def clipped(training: Training) -> Iterator[Stepper]:
    yield lambda: training.step(training.clip)


@contextlib.contextmanager
def headway_guard(training: Training) -> Iterator[Stepper]:
    from headway import Guard

    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(training.model, training.optimizer, run_dir=folder)
        yield training.step
        guard.close()


@contextlib.contextmanager
def anomaly(training: Training) -> Iterator[Stepper]:
    with torch.autograd.set_detect_anomaly(True):
        yield training.step


@contextlib.contextmanager
def underflow(training: Training) -> Iterator[Stepper]:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(training.model)
    yield training.step


def audited(every: int) -> Any:
    @contextlib.contextmanager
    def torch_audit(training: Training) -> Iterator[Stepper]:
        from torch_audit import autopatch

        auditor = autopatch(training.model, optimizer=training.optimizer, every_n_steps=every)
        yield training.step
        auditor.unpatch()

    return torch_audit


@contextlib.contextmanager
def trainpulse(training: Training) -> Iterator[Stepper]:
    from torch.optim.optimizer import Optimizer
    from trainpulse import TrainingCallback

    callback, made = TrainingCallback(), [0]
    losses: list[float] = []
    back = torch.Tensor.backward

    def backward(loss: torch.Tensor) -> None:
        losses[:] = [loss.item()]
        back(loss)

    def after(optimizer: Optimizer, *_: Any) -> None:
        callback.on_step_end(
            made[0],
            loss=losses[0],
            grad_norm=norm_of(optimizer),
            lr=optimizer.param_groups[0]["lr"],
        )
        made[0] += 1
        callback.on_step_begin(made[0])

    training.optimizer.register_step_post_hook(after)
    torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]
    callback.on_step_begin(0)
    try:
        yield training.step
    finally:
        torch.Tensor.backward = back  # type: ignore[method-assign]


@contextlib.contextmanager
def stabilityguard(training: Training) -> Iterator[Stepper]:
    with tempfile.TemporaryDirectory() as folder:
        made = guarded(training.optimizer, training.model, folder)
        yield training.step
        made.close()


def watched(**how: Any) -> Any:
    @contextlib.contextmanager
    def wandb_watch(training: Training) -> Iterator[Stepper]:
        import wandb

        with tempfile.TemporaryDirectory() as folder:
            run = wandb.init(project="peers", mode="offline", dir=folder)
            wandb.watch(training.model, **how)

            def step() -> None:
                training.step()
                run.log({"step": 1})

            yield step
            wandb.unwatch(training.model)
            run.finish()

    return wandb_watch


VARIANTS: dict[str, tuple[str, Any]] = {
    "plain": ("plain step", plain),
    "clip": ("`clip_grad_norm_` alone", clipped),
    "headway": ("`headway.Guard`, every step", headway_guard),
    "anomaly": ("`detect_anomaly` (Lightning's flag is the same)", anomaly),
    "underflow": ("`DebugUnderflowOverflow`", underflow),
    "torch-audit": ("torch-audit, every step", audited(1)),
    "torch-audit, default": ("torch-audit, its default of every 1000 steps", audited(1000)),
    "trainpulse": ("trainpulse, with the norm its user must compute", trainpulse),
    "stabilityguard": ("stabilityguard", stabilityguard),
    "wandb": ("`wandb.watch(log='all', log_freq=1)`", watched(log="all", log_freq=1)),
    "wandb, default": ("`wandb.watch`, its default of every 1000 steps", watched()),
}


def seconds(variant: Any, steps: int) -> float:
    """Of processor time, one step, after two that are not counted."""
    training = Training(CASES["cpu"][0], "cpu")
    with variant(training) as step:
        for _ in range(2):
            step()
        began = time.process_time()
        for _ in range(steps):
            step()
        return (time.process_time() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(WANDB_SILENT="true", WANDB_MODE="offline")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tools print is no row
    told: dict[str, list[float]] = {name: [] for name in VARIANTS}
    failed: dict[str, str] = {}
    for _ in range(args.rounds):
        for name, (_words, variant) in VARIANTS.items():
            if name in failed:
                continue
            try:
                told[name].append(seconds(variant, args.steps))
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
    for name, (words, _variant) in VARIANTS.items():
        row: dict[str, Any] = {"part": "overhead", "tool": name, "words": words}
        if name in failed:
            row.update(state="broke", why=failed[name][:300])
        else:
            ratios = [a / b for a, b in zip(told[name], told["plain"], strict=True)]
            row.update(
                state="ran",
                ratio=round(statistics.median(ratios), 3),
                least=round(min(ratios), 3),
                most=round(max(ratios), 3),
                milliseconds=round(1000 * statistics.median(told[name]), 1),
                rounds=args.rounds,
                told=f"{statistics.median(ratios):.2f}",
            )
        print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
