"""What the graph of a loss says about the calls that made it: what follows what.

The graph is the same however the forward was written: modules, functions, loops, own classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MOST_NODES = 30_000
_PRODUCTS = ("mm", "conv", "linear", "rnn", "lstm", "gru", "scaleddot", "einsum")
_PASSED = (
    *("view", "reshape", "transpose", "permute", "expand", "squeeze", "dropout", "batchnorm"),
    *("avgpool", "asstrided", "tocopy", "slice", "copyslices"),
)
_PASSED_EXACTLY = (
    "t",
    "clone",
    "alias",
    "select",
    "mul",
    "div",
    "add",
    "sub",
    "neg",
    "mean",
    "sum",
)
"""Operations that keep a linear map linear; of sums and products, those with a constant."""


@dataclass(slots=True)
class Graph:
    """The nodes behind some losses."""

    nodes: set[Any] = field(default_factory=set)
    consumers: dict[Any, list[Any]] = field(default_factory=dict)

    @classmethod
    def behind(cls, starts: Iterable[Any]) -> Graph:
        """Everything that leads to these nodes."""
        graph = cls()
        todo = deque(node for node in starts if node is not None)
        graph.nodes.update(todo)
        while todo:
            node = todo.popleft()
            for following in inputs(node):
                graph.consumers.setdefault(following, []).append(node)
                if following not in graph.nodes and len(graph.nodes) < MOST_NODES:
                    graph.nodes.add(following)
                    todo.append(following)
        return graph

    def behind_products(self) -> set[Any]:
        """The nodes whose values go through a further layer before they reach the losses."""
        found: set[Any] = set()
        todo = [following for node in self.nodes if is_product(node) for following in inputs(node)]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += inputs(node)
        return found

    def is_gate(self, node: Any) -> bool:
        """Whether a value is only multiplied with another one that is computed, too."""
        using = self.consumers.get(node, [])
        return bool(using) and all(
            name_of(item) == "mul" and len(_computed(item)) > 1 for item in using
        )


def name_of(node: Any) -> str:
    """`addmm` for AddmmBackward0."""
    name: str = node.name().lower().rpartition("::")[2]
    return name.partition("backward")[0]


def inputs(node: Any) -> list[Any]:
    """The nodes a node's values came from."""
    return [following for following, _ in node.next_functions if following is not None]


def is_product(node: Any) -> bool:
    """Whether it multiplies with a weight, most likely."""
    name = name_of(node)
    return any(part in name for part in _PRODUCTS)


def is_leaf(node: Any) -> bool:
    """Whether it stands for a parameter, or another tensor that nothing was computed for."""
    return name_of(node) == "accumulategrad"


def is_straight(node: Any) -> bool:
    """Whether a node leaves a linear map linear, or is itself a plain layer."""
    name = name_of(node)
    if name in ("addmm", "mm", "convolution", "embedding"):
        return True
    return _passes(name) and len(_computed(node)) < 2


def through_linear(node: Any) -> Any:
    """Where the value came from, if this node leaves a linear map linear; else None."""
    following = _computed(node)
    return following[0] if len(following) == 1 and _passes(name_of(node)) else None


def _passes(name: str) -> bool:
    return name in _PASSED_EXACTLY or any(part in name for part in _PASSED)


def _computed(node: Any) -> list[Any]:
    """Its inputs without the parameters."""
    return [item for item in inputs(node) if not is_leaf(item)]
