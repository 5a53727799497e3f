"""Optimizers that call backward themselves: `optimizer.step(closure)`.

The step's pre-hook runs before the closure has filled a single gradient. So the closure is run
first, the step is judged, and the optimizer is handed a closure that answers its first call with
the loss already there. LBFGS evaluates several times within one step and keeps counters besides its
moments: its state and its weights are kept, so that a step that went bad half-way leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

Closure = Callable[[], Any]


def find_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure | None:
    """The closure of a call of `optimizer.step`, whose arguments begin with the optimizer."""
    found = kwargs.get("closure", args[1] if len(args) > 1 else None)
    return found if callable(found) else None


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another closure."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs


class FirstAnswer:
    """A closure whose first call was already made."""

    def __init__(self, closure: Closure, loss: Any, *, held: bool) -> None:
        self._closure = closure
        self._loss = loss
        self._held = held
        self._asked = False

    def __call__(self) -> Any:
        if self._held or not self._asked:
            self._asked = True
            return self._loss
        return self._closure()


class SearchState:
    """Weights and state of an optimizer that searches along a line, before its step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._weights = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._state = {key: _copy(value) for key, value in optimizer.state.items()}

    @classmethod
    def keep(cls, optimizer: Optimizer) -> SearchState | None:
        """The state of an optimizer that needs it; None for all the others."""
        return cls(optimizer) if isinstance(optimizer, LBFGS) else None

    def went_bad(self) -> bool:
        """Whether the step left a weight non-finite."""
        return not all(bool(torch.isfinite(parameter).all()) for parameter, _ in self._weights)

    @torch.no_grad()
    def put_back(self) -> None:
        """As if the step had never been tried."""
        for parameter, before in self._weights:
            parameter.copy_(before)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _copy(state: Any) -> Any:
    # Tensors are updated in place; the lists of past directions only grow and shrink.
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return list(state) if isinstance(state, list) else state
