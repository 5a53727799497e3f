"""What an adaptive clipping learns from a run, and what it must never learn.

A limit made of past norms is worth as much as what it was taught: one NaN in a running mean stays
there for good, and a norm of 0 makes a limit of 0, which lets nothing through ever after. So a rule
is a pure formula, and what it has learned is kept here. Only steps that are applied are learned
from, and everything stays on the device of the gradients, where no host waits for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.errors import UsageError
from headway.live.probes import Norms

State = dict[str, Tensor]


class AdaptiveClip(ABC):
    """A rule for `Guard(max_norm=…)`: settings and a formula, no state of its own."""

    per_tensor: ClassVar[bool]
    """Whether each tensor has a limit of its own, or all gradients one together."""
    fresh: ClassVar[Mapping[str, float]]
    """What is known before the first step; of each tensor, if the rule is per tensor."""

    @abstractmethod
    def __call__(self, past: State, norms: Norms) -> tuple[Tensor, State]:
        """What to multiply the gradients by, and what is known after this step."""

    def _demand(self, what: str, fits: Callable[[Any], bool], *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not fits(value):
                raise UsageError(f"{type(self).__name__}({name}=…) is {what}: got {value!r}")


def positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, (int, float)) and 0 < value < math.inf


def a_share(value: Any) -> bool:
    """Whether it is a number from 0 to less than 1."""
    return isinstance(value, (int, float)) and 0 <= value < 1


def a_count(value: Any) -> bool:
    """Whether it is a whole number above 0."""
    return isinstance(value, int) and value >= 1


class ClipMemory:
    """What a rule has learned of the gradients of one optimizer.

    Tensors are replaced, never changed in place: a `state_dict` stays as it was when taken.
    """

    def __init__(self, rule: AdaptiveClip, optimizer: Optimizer) -> None:
        self.rule = rule
        self._optimizer = optimizer
        self._state: State = {}
        self._before: State = {}
        self._key: tuple[int, ...] = ()
        self._rows: Tensor | None = None

    def factors(
        self, parameters: Sequence[Tensor], norms: Norms, bad: Tensor | None = None
    ) -> Tensor:
        """What to multiply the gradients by: one number, or one for each of them.

        A step that is bad, or whose norm is not finite, is not clipped and teaches nothing. Nor
        does a norm of 0: a gradient that is not there (an expert nobody asked, a weight behind
        one that starts at zero) does not say how large it will be when it is.
        """
        good = torch.isfinite(norms.total)
        if bad is not None:
            good = good & ~bad
        device = norms.total.device
        state = self._state_on(device)
        rows = self._rows_of(parameters, device) if self.rule.per_tensor else None
        past = state if rows is None else {name: each[rows] for name, each in state.items()}
        factors, new = self.rule(past, norms)
        learn = good & ((norms.each if self.rule.per_tensor else norms.total) > 0)
        for value in new.values():
            learn = learn & torch.isfinite(value)  # the square of a large norm may not be
        kept = {name: torch.where(learn, new[name], past[name]) for name in new}
        if rows is not None:
            kept = {name: state[name].index_copy(0, rows, each) for name, each in kept.items()}
        self._before, self._state = state, kept
        return torch.where(good, factors, 1.0)

    def undo(self) -> None:
        """The last step came to nothing after all."""
        self._state = self._before

    def state_dict(self) -> dict[str, Any]:
        """Everything learned: the name of the rule, and tensors where they are."""
        return {"rule": type(self.rule).__name__, **self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on from there; False, and start afresh, where it is not of this rule or optimizer."""
        found = {name: value.clone() for name, value in state.items() if name != "rule"}
        fits = state.get("rule") == type(self.rule).__name__ and (not found or self._fits(found))
        self._state = self._before = found if fits else {}
        return fits

    def _fits(self, found: State) -> bool:
        if found.keys() != self.rule.fresh.keys():
            return False
        shapes = {tuple(value.shape) for value in found.values()}
        if not self.rule.per_tensor:
            return shapes == {()}
        # Fewer rows than parameters: a group was added since.
        return len(shapes) == 1 and len(min(shapes)) == 1 and min(shapes)[0] <= self._count()

    def _count(self) -> int:
        return sum(len(group["params"]) for group in self._optimizer.param_groups)

    def _state_on(self, device: torch.device) -> State:
        """The state, with a row for every parameter: groups may be added on the way."""
        state = self._state
        known = next(iter(state.values()), None)
        if known is not None and known.device != device:
            state = {name: value.to(device) for name, value in state.items()}
        if self.rule.per_tensor:
            rows = 0 if known is None else len(known)
            if rows < self._count():
                more = self._new_state(device, (self._count() - rows,))
                state = {n: torch.cat([state[n], more[n]]) if state else more[n] for n in more}
            return state
        return state or self._new_state(device, ())

    def _new_state(self, device: torch.device, shape: tuple[int, ...]) -> State:
        return {
            name: torch.full(shape, value, dtype=torch.float32, device=device)
            for name, value in self.rule.fresh.items()
        }

    def _rows_of(self, parameters: Sequence[Tensor], device: torch.device) -> Tensor | None:
        """The rows of these parameters; None when they are all there are, in order."""
        key = (self._count(), *map(id, parameters))
        if key != self._key:
            groups = self._optimizer.param_groups
            every = [id(parameter) for group in groups for parameter in group["params"]]
            row_of = {each: row for row, each in enumerate(every)}
            rows = [row_of[each] for each in key[1:]]
            in_order = rows == list(range(len(every)))
            self._rows = None if in_order else torch.tensor(rows).to(device, non_blocking=True)
            self._key = key
        return self._rows
