"""Tries one update: the loss of its own batch along the way from the weights before to those
after.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.torch_adapters.frames import Location, is_installed_file, is_internal_file
from headway.torch_adapters.modes import no_dispatch_modes
from headway.torch_adapters.op_recording.op_replay import CannotReplay, OpReplay
from headway.torch_adapters.op_recording.recorded_ops import RecordedRoot

# Trying an update: the loss of its own batch along the way from the weights before to those
# after.

# The weights are put somewhere between or beyond the two, the tape of the step is played, and they
# are put back bit by bit. Nothing else of the user's is touched.

SAME_LOSS = 1e-4
"""How well the recorded loss must come out again, relative."""
SMALLEST, LARGEST, FARTHEST = 1e-4, 1000.0, 1e6
"""The range of multiples of an update that are tried; the last where nothing shows before."""
ROUNDED_AWAY = 256
"""Rounding in half precision largely averages out: a loss is finer than its parts by this."""
AGREES = 0.3
"""The measured slope belongs to the gradient when it is as near as this to it, relative."""


class WeightUpdate:
    """The weights before and after a step."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Before the step."""
        self.parameters = list(parameters)
        self.before = [parameter.detach().clone() for parameter in parameters]
        self.after: list[Tensor] = []
        self.gradients: list[Tensor | None] = []
        """As the last backward pass left them, before anybody changed them."""
        self._sizes: dict[str, float] | None = None

    @torch.no_grad()
    def made(self) -> bool:
        """After the step: whether anything has moved."""
        self.after = [parameter.detach().clone() for parameter in self.parameters]
        if any(after.is_meta for after in self.after):  # there are no numbers to be compared
            return False
        pairs = zip(self.before, self.after, strict=True)
        return not all(torch.equal(before, after) for before, after in pairs)

    @contextmanager
    def put(self, multiple: float) -> Iterator[None]:
        """Add this multiple of the update to the previous weights inside the block."""
        try:
            for parameter, before, after in self._weights():
                parameter.data.copy_(_between(before, after, multiple))
            yield
        finally:
            for parameter, _, after in self._weights():
                parameter.data.copy_(after)

    def sizes(self) -> dict[str, float]:
        """Norms, and the angle of the update to weights and gradient; measured once."""
        if self._sizes is None:
            with no_dispatch_modes():
                self._sizes = self._measure_sizes()
        return dict(self._sizes)

    @torch.no_grad()
    def _measure_sizes(self) -> dict[str, float]:
        found = dict.fromkeys(("weight", "update", "gradient", "stepped_gradient"), 0.0)
        slope, stepped_slope = 0.0, 0.0
        weight, move, along = 0.0, 0.0, 0.0
        gradients = self.gradients or [None] * len(self.before)
        for parameter, before, after, gradient in zip(
            self.parameters, self.before, self.after, gradients, strict=True
        ):
            # Each is converted once: of a large model these are the costly part.
            step = _flat((after - before).float())
            old = _flat(before)
            stepped = _dense(parameter.grad)
            if stepped is not None:
                pushed = _flat(stepped)
                found["stepped_gradient"] += _dot(pushed, pushed)
                stepped_slope += _dot(pushed, step)
            old_square, step_square = _dot(old, old), _dot(step, step)
            found["weight"] += old_square
            found["update"] += step_square
            if gradient is not None:
                flat = _flat(gradient)
                found["gradient"] += _dot(flat, flat)
                slope += _dot(flat, step)
            if before.ndim >= 2:
                weight += old_square
                move += step_square
                along += _dot(old, step)
        facts = {f"{name}_norm": math.sqrt(square) for name, square in found.items()}
        if weight > 0 and move > 0:
            facts["matrix_norm"] = math.sqrt(weight)
            facts["shrinking"] = -along / weight
            facts["against_weights"] = -along / math.sqrt(weight * move)
        return {**facts, "gradient_slope": slope, "stepped_slope": stepped_slope}

    def _weights(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return zip(self.parameters, self.before, self.after, strict=True)


@dataclass(slots=True)
class UpdateTrial:
    """The loss along an update."""

    start: float
    """The loss before it."""
    noise: float
    """Differences up to this are rounding."""
    losses: dict[float, float] = field(default_factory=dict)
    """Multiple of the update → loss; infinite where it was no number."""
    slope: float | None = None
    """What a small part of the update does to the loss, per update."""

    def drop(self, multiple: float) -> float:
        """How much lower the loss is there."""
        return self.start - self.losses[multiple]


def run_trial(
    player: OpReplay, update: WeightUpdate, scale: float, recorded: float | None
) -> UpdateTrial:
    """The losses along an update. Raises CannotPlay where they cannot be had.

    `recorded` is the loss as the script saw it, which must come out again at the weights before.
    """

    def at(multiple: float) -> float:
        with no_dispatch_modes(), update.put(multiple):  # a mode that only passes ops on is slow
            loss = sum(player.play()) / scale
        return loss if math.isfinite(loss) else math.inf

    start = at(0.0)
    if not math.isfinite(start):
        raise CannotReplay("the loss is not finite")
    if recorded is not None and abs(start - recorded) > _tolerance(player, recorded):
        raise CannotReplay("replaying the step gives another loss")
    fine = torch.finfo(torch.float32).eps
    trial = UpdateTrial(
        start, max(4 * fine, player.resolution / ROUNDED_AWAY) * max(abs(start), 1e-12)
    )
    for multiple in (1.0, 0.1):
        trial.losses[multiple] = at(multiple)
    expected = update.sizes()["gradient_slope"] / scale
    multiple = 0.1
    while (
        not (_near(trial, multiple, expected) or _near(trial, multiple, -expected))
        and multiple / 10 >= SMALLEST * 0.99
    ):
        multiple /= 10
        trial.losses[multiple] = at(multiple)
    multiple = 1.0
    while trial.drop(multiple) > -trial.noise and (
        multiple < LARGEST or (abs(trial.drop(multiple)) < 10 * trial.noise and multiple < FARTHEST)
    ):
        multiple *= 10
        trial.losses[multiple] = at(multiple)
    trial.slope = _slope(trial, expected)
    return trial


def _tolerance(player: OpReplay, recorded: float) -> float:
    return max(SAME_LOSS, player.resolution / 4) * max(abs(recorded), 1e-6)


def _near(trial: UpdateTrial, multiple: float, expected: float) -> bool:
    """Whether the loss there agrees with the gradient, or is too close to decide."""
    change = trial.losses[multiple] - trial.start
    if abs(change) <= trial.noise:
        return True
    return abs(change - multiple * expected) <= AGREES * abs(multiple * expected)


def _slope(trial: UpdateTrial, expected: float) -> float | None:
    """From the smallest multiple that shows in the loss; the one nearest to the gradient first."""
    shown = [
        (multiple, loss)
        for multiple, loss in sorted(trial.losses.items())
        if abs(loss - trial.start) > trial.noise and math.isfinite(loss)
    ]
    for sign in (1, -1):  # a hook may have negated every gradient
        for multiple, loss in shown:
            if _near(trial, multiple, sign * expected):
                return (loss - trial.start) / multiple
    return (shown[0][1] - trial.start) / shown[0][0] if shown else None


def _between(before: Tensor, after: Tensor, multiple: float) -> Tensor:
    if multiple in (0.0, 1.0):
        return after if multiple else before
    precise = torch.float64 if before.dtype == torch.float64 else torch.float32
    step = after.to(precise) - before.to(precise)
    return (before.to(precise) + multiple * step).to(before.dtype)


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _flat(tensor: Tensor) -> Tensor:
    return tensor.double().reshape(-1)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a, b))


LONGEST_GAP = 50
"""Steps between two trials, at most."""


MOST_LOSSES = 64
"""Maximum number of losses reported with a trial, evenly spread."""


@dataclass(slots=True)
class BackwardPass:
    """A backward pass since the last step."""

    place: dict[str, Any] | None
    roots: list[RecordedRoot]
    scale: float


@dataclass(slots=True)
class WatchedOptimizer:
    """An optimizer."""

    optimizer: Optimizer
    number: int
    steps: int = 0
    tried: int = 0
    next_trial: int = 0
    peak: float = 0.0
    last_rate: float | None = None
    update: WeightUpdate | None = None
    losses: list[Tensor] = field(default_factory=list)
    tasks: list[Tensor] = field(default_factory=list)
    of_step: list[Tensor] = field(default_factory=list)


def next_trial_step(step: int) -> int:
    """The step of the next trial."""
    return min(max(step + 1, math.ceil(step * 1.5)), step + LONGEST_GAP)


def locate_own_step(optimizer: Optimizer) -> dict[str, Any] | None:
    """Where the user's own optimizer makes its step; None for one that was installed."""
    function = inspect.unwrap(type(optimizer).step)
    code = getattr(function, "__code__", None)
    if code is None or is_internal_file(code.co_filename) or is_installed_file(code.co_filename):
        return None
    return Location(code.co_filename, code.co_firstlineno, code.co_name).to_dict()


def take_loss_series(watched: WatchedOptimizer) -> dict[str, Any]:
    """The losses since the last trial, each reported once."""
    losses, tasks = watched.losses, watched.tasks
    watched.losses, watched.tasks = [], []
    values = to_floats(losses)
    finite = [value for value in values if math.isfinite(value)]
    return {
        "since": _thin_evenly(finite),
        "tasks": _thin_evenly([value for value in to_floats(tasks) if math.isfinite(value)]),
        "bad_losses": len(values) - len(finite),
        "steps": len(values),
    }


def to_floats(tensors: Sequence[Tensor]) -> list[float]:
    return [float(item) for item in tensors]


def _thin_evenly(values: list[float]) -> list[float]:
    if len(values) <= MOST_LOSSES:
        return values
    return [values[at * (len(values) - 1) // (MOST_LOSSES - 1)] for at in range(MOST_LOSSES)]


def sum_scalars(values: Sequence[Tensor]) -> Tensor:
    total = values[0].float().reshape(())
    for value in values[1:]:
        total = total + value.float().reshape(()).to(total.device)
    return total


@torch.no_grad()
def measure_gradient_norm(parameters: Sequence[Tensor]) -> float:
    squares = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = parameter.grad
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            squares += float(dense.double().pow(2).sum())
    return math.sqrt(squares)
