"""A tiny training into which faults are injected at given steps.

Deterministic: one recipe and one schedule give one outcome. A fault is either in the step (its
batch, loss or gradients: holding the update back is the whole cure), in the state (weights,
moments, statistics that somebody overwrote between two steps), or around the training (a check that
raises, a disk that is full). Nothing is pretended: gradients, tensors and files really are bad.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from headway import Guard, Snapshots, TrainingHalted
from support.trainings import Batch, batches, make_net, squared_error

STEPS = 48
GRACE = 20
"""So many gradients must have been learned before a spike can be told from one of them."""

OPTIONS: dict[str, Any] = {"snapshots": Snapshots(every=8, disk_share=1.0)}

DATA = batches(STEPS, size=64)
(HELD_OUT,) = batches(1, seed=0, size=256)
NOWHERE = Path("/sys/headway-run")
"""Nobody can make a directory there, root included."""


@dataclass(frozen=True)
class Fault:
    """Something bad at a step; `place` chooses the parameter, the row, the check it is about."""

    step: int
    kind: str
    place: int = 0


@dataclass(frozen=True)
class Recipe:
    """How the training is run."""

    scaled: bool = False
    max_norm: float | None = None
    clip: float | None = None
    fused: bool = False


@dataclass
class Outcome:
    """What a training leaves behind, without the model and the optimizer themselves.

    Results are cached; a live optimizer would be guarded by later tests that run a script.
    """

    tensors: dict[str, Tensor]
    """Weights and moments."""
    statistics: dict[str, Tensor]
    """Those of BatchNorm."""
    guard: Guard | None = None
    halted: TrainingHalted | None = None
    loss: float = math.nan
    """On data never trained on, at the end."""
    applied: list[Fault] = field(default_factory=list)
    """The faults that took effect: some come too late, or find nothing to spoil."""

    def met(self, kinds: Iterable[str]) -> list[Fault]:
        """The faults of these kinds that took effect."""
        return [fault for fault in self.applied if fault.kind in kinds]


class Training:
    """One training and the hands that spoil it."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.model = make_net()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=5e-2, weight_decay=0.01, fused=recipe.fused
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, STEPS, eta_min=1e-2
        )
        self.scaler = GradScaler(
            "cpu", init_scale=2.0**10, growth_interval=4, enabled=recipe.scaled
        )

    def step(self, batch: Batch, faults: list[Fault]) -> None:
        """A step of the user's loop, with faults in it."""
        for fault in faults:
            batch = IN_BATCH.get(fault.kind, _as_it_is)(batch, fault.place)
        loss = squared_error(self.model, batch)
        for fault in faults:
            loss = loss * IN_LOSS.get(fault.kind, 1.0)
        self.scaler.scale(loss).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        for fault in faults:
            if fault.kind in IN_GRADIENTS:
                IN_GRADIENTS[fault.kind](gradients, fault.place)
        if self.recipe.clip is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def held_out_loss(self) -> float:
        """By the batch's own statistics: those the model keeps may be what was spoiled."""
        with torch.no_grad():
            return float(squared_error(copy.deepcopy(self.model).train(), HELD_OUT))

    def outcome(self) -> Outcome:
        tensors = {name: p.detach() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            for key, value in self.optimizer.state[p].items():
                if isinstance(value, Tensor):
                    tensors[f"{name}.{key}"] = value
        return Outcome(tensors, dict(self.model.named_buffers()), loss=self.held_out_loss())


@functools.cache
def clean(recipe: Recipe, without: frozenset[int] = frozenset()) -> Outcome:
    """The training without faults and without a guard; the steps `without` are never made."""
    training = Training(replace(recipe, clip=recipe.clip or recipe.max_norm))
    for number, batch in enumerate(DATA):
        if number in without:
            training.scheduler.step()
        else:
            training.step(batch, [])
    return training.outcome()


def carry_out(recipe: Recipe, schedule: list[Fault], run_dir: Path | None) -> Outcome:
    """The training under a guard, with the faults of a schedule."""
    training = Training(recipe)
    read_only = [fault for fault in schedule if fault.kind == "read-only run directory"]
    if read_only:
        run_dir = NOWHERE
    scaler = training.scaler if recipe.scaled else None
    options = dict(OPTIONS, scaler=scaler, max_norm=recipe.max_norm, run_dir=run_dir)
    applied, halted = read_only, None
    with Guard(training.model, training.optimizer, training.scheduler, **options) as guard:
        try:
            for number, batch in enumerate(guard(DATA)):
                faults = [fault for fault in schedule if fault.step == number]
                applied += [fault for fault in faults if _apply(fault, training, guard)]
                training.step(batch, faults)
        except TrainingHalted as error:
            halted = error
    return replace(training.outcome(), guard=guard, halted=halted, applied=applied)


def _apply(fault: Fault, training: Training, guard: Guard) -> bool:
    """Do what a fault does besides the step; whether it took effect, here or in the step."""
    if fault.kind in BETWEEN_STEPS:
        return BETWEEN_STEPS[fault.kind](training, fault.place)
    if fault.kind in AROUND:
        return AROUND[fault.kind](guard, fault.place)
    return True


# In the step: its batch, its loss, its gradients.


def _as_it_is(batch: Batch, place: int) -> Batch:
    return batch


def _with_input(value: float) -> Callable[[Batch, int], Batch]:
    def spoil(batch: Batch, place: int) -> Batch:
        x, y = batch[0].clone(), batch[1]
        x.view(-1)[place % x.numel()] = value
        return x, y

    return spoil


def _with_target(batch: Batch, place: int) -> Batch:
    y = batch[1].clone()
    y[place % len(y)] = math.nan
    return batch[0], y


def _in_one_gradient(value: float) -> Callable[[list[Tensor], int], None]:
    def spoil(gradients: list[Tensor], place: int) -> None:
        gradients[place % len(gradients)].view(-1)[0] = value

    return spoil


def _spike(gradients: list[Tensor], place: int) -> None:
    torch._foreach_mul_(gradients, 1e6)


IN_BATCH: dict[str, Callable[[Batch, int], Batch]] = {
    "nan input": _with_input(math.nan),
    "inf input": _with_input(-math.inf),
    "nan target": _with_target,
}
IN_LOSS = {"nan loss": math.nan, "inf loss": math.inf}
IN_GRADIENTS: dict[str, Callable[[list[Tensor], int], None]] = {
    "nan gradient": _in_one_gradient(math.nan),
    "inf gradient": _in_one_gradient(math.inf),
    "spiked gradient": _spike,
}

# In the state, between two steps.


def _parameter(training: Training, place: int) -> Any:
    parameters = list(training.model.parameters())
    return parameters[place % len(parameters)]


def _corrupt_weight(training: Training, place: int) -> bool:
    _parameter(training, place).data.view(-1)[0] = math.inf if place % 2 else math.nan
    return True


def _in_moment(key: str, value: float) -> Callable[[Training, int], bool]:
    def spoil(training: Training, place: int) -> bool:
        state = training.optimizer.state[_parameter(training, place)]
        if key not in state:  # no step was taken yet
            return False
        state[key].view(-1)[0] = value
        return True

    return spoil


def _poison_statistics(training: Training, place: int) -> bool:
    """As a forward pass over bad data does that nobody makes a step of."""
    with torch.no_grad():
        training.model(torch.full((4, 6), math.nan))
    return True


def _collapse_scale(training: Training, place: int) -> bool:
    if not training.recipe.scaled or training.scaler._scale is None:  # nothing was scaled yet
        return False
    training.scaler.update(2.0 ** -(20 + place % 20))
    return True


BETWEEN_STEPS: dict[str, Callable[[Training, int], bool]] = {
    "corrupted weight": _corrupt_weight,
    "nan moment": _in_moment("exp_avg", math.nan),
    "inf moment": _in_moment("exp_avg", -math.inf),
    "nan second moment": _in_moment("exp_avg_sq", math.nan),
    "inf second moment": _in_moment("exp_avg_sq", math.inf),
    "poisoned statistics": _poison_statistics,
    "collapsed scale": _collapse_scale,
}

# Around the training.


def _raise_in_check(guard: Guard, place: int) -> bool:
    def broken(record: Any) -> Any:
        raise RuntimeError("a sick check")

    engine = guard._session.recorder.engine
    seat = engine._slots[place % len(engine._slots)]
    engine._check_of(seat).observe = broken  # type: ignore[method-assign]
    return True


def _fill_disk(guard: Guard, place: int) -> bool:
    """What is written from now on meets the kernel's own ENOSPC."""
    run_dir = guard.run_dir
    if run_dir is None or not run_dir.is_dir():
        return False
    for name in ("steps.rank0.jsonl", "events.jsonl"):
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / name).symlink_to("/dev/full")
    return True


def _lose_directory(guard: Guard, place: int) -> bool:
    """Somebody moved it away, and put something else in its place."""
    run_dir = guard.run_dir
    if run_dir is None or not run_dir.is_dir():
        return False
    for attempt in itertools.count():
        os.replace(run_dir, run_dir.with_name(f"moved{attempt}"))
        # The thread that writes a snapshot may have made the folder again.
        with contextlib.suppress(FileExistsError), open(run_dir, "x") as file:
            file.write("not a directory")
            break
    return True


AROUND: dict[str, Callable[[Guard, int], bool]] = {
    "exception in a check": _raise_in_check,
    "full disk": _fill_disk,
    "lost run directory": _lose_directory,
    "read-only run directory": lambda guard, place: False,  # it was so from the start
}

SKIPPED = (*IN_BATCH, *IN_LOSS, "nan gradient", "inf gradient")
"""Held back at any step, and nothing is left of them."""
DESTROYING = ("corrupted weight", "nan moment", "inf moment", "nan second moment")
"""No skipping mends these."""
LOSING_THE_RECORD = ("full disk", "lost run directory", "read-only run directory")


def full_disk_is_real() -> bool:
    """Whether this system has a device that is always full."""
    try:
        with open("/dev/full", "ab") as file:
            file.write(b"x")
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False
