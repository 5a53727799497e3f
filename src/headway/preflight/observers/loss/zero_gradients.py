"""The op at which the gradient on its way to a weight becomes exactly 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from headway.engine import PLACES
from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.autograd_graph import walk_graph
from headway.torch_adapters.nested_state import find_tensors

FIRST, LAST = 1, 3
"""Steps whose gradients are looked at; the last of them is followed op by op."""
MOST_NODES = 20_000
MOST_LINES = 5000
KEY = "zero_gradient"


class ZeroGradientOps(Observer):
    """Follows one weight whose gradient is 0 in every step from the loss down, once."""

    now_and_then = True

    def start(self) -> None:
        self._zeros: dict[int, Tensor] | None = None
        """Weights whose gradient was exactly 0 so far."""
        self._lines: dict[Any, dict[str, Any] | None] = {}
        self._chain: list[tuple[Any, int]] = []
        """Nodes from the loss to a weight, each with the number of the next among its inputs."""
        self._cut: Any = None
        self._handles: list[Any] = []

    def step_begins(self, optimizer: Optimizer) -> None:
        if not FIRST <= self.script.step < LAST:
            return
        weights = [p for group in optimizer.param_groups for p in group["params"] if p.ndim > 1]
        found = {id(p): p for p in weights if type(p.grad) is Tensor and not p.grad.is_sparse}
        zeros = {key: p for key, p in found.items() if not bool(p.grad.any())}
        if self._zeros is not None and len(self.script.optimizers) == 1:
            zeros = {key: p for key, p in zeros.items() if key in self._zeros}
        self._zeros = zeros if len(zeros) < len(found) else {}

    def step_ended(self, optimizer: Optimizer) -> None:
        self.every_function = bool(self._zeros) and self.script.step == LAST
        if self.script.step > LAST:
            self.finished()

    def function_ended(self, call: TorchCall) -> None:
        if len(self._lines) >= MOST_LINES:
            return
        for _, item in find_tensors(call.result):
            if item.grad_fn is not None and item.grad_fn not in self._lines:
                self._lines[item.grad_fn] = self.script.place()

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self.every_function or not self._zeros or self._handles:
            return
        self._chain = _path([root.grad_fn for root in roots], set(self._zeros))
        for node, at in self._chain:
            self._handles.append(node.register_hook(self._look(node, at)))

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if not self._handles:
            return
        place = self._lines.get(self._cut)
        if place is not None:
            self.evidence.record(PLACES, {KEY: place})
        self.finished()

    def finished(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.every_function = False
        self._zeros, self._handles, self._chain, self._cut = {}, [], [], None
        self._lines.clear()

    def _look(self, node: Any, at: int) -> Any:
        def look(given: Sequence[Any], received: Sequence[Any]) -> None:
            if self._cut is None and _is_some(received) and not _is_some(given[at : at + 1]):
                self._cut = node

        return look


def _is_some(gradients: Sequence[Any]) -> bool:
    return any(isinstance(item, Tensor) and bool((item != 0).any()) for item in gradients)


def _path(starts: Sequence[Any], wanted: set[int]) -> list[tuple[Any, int]]:
    """The nodes between the loss and the first wanted leaf."""
    above: dict[Any, tuple[Any, int]] = {}
    for node in walk_graph(starts, most=MOST_NODES):
        if id(getattr(node, "variable", None)) in wanted:
            found: list[tuple[Any, int]] = []
            while node in above:
                found.append(above[node])
                node = above[node][0]
            return found[::-1]
        for at, (following, _) in enumerate(node.next_functions):
            if following is not None:
                above.setdefault(following, (node, at))
    return []
