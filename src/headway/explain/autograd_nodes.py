"""Autograd nodes of a traced pass: the forward op each belongs to, and the named part of the
loss.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headway.explain.traced_call import BadInput, TracedCall
from headway.torch_adapters.autograd_graph import node_number, walk_graph
from headway.torch_adapters.runtime_state import LEAF_NUMBER, last_node_number

MOST_NODES = 200_000


@dataclass(slots=True)
class TracedComponent:
    """A named loss component."""

    name: str
    value: float
    sources: tuple[BadInput, ...]
    """Where its non-finite values come from."""
    number: int | None
    """Number of the autograd node that created it."""
    numbers: frozenset[int] = frozenset()
    """Numbers of all nodes of its graph."""


def _walk_all(starts: Iterable[Any]) -> Iterator[Any]:
    return walk_graph(starts, most=MOST_NODES)


def read_component_graphs(
    roots: Sequence[Tensor], components: Mapping[str, Tensor], found: Mapping[str, TracedComponent]
) -> None:
    """Fill in `numbers`. For a detached component: the part of the graph of the loss that begins at
    the node which created it."""
    whole: dict[int | None, Any] = {
        node_number(node): node for node in _walk_all(root.grad_fn for root in roots)
    }
    for name, tensor in components.items():
        start = tensor.grad_fn or whole.get(found[name].number)
        found[name].numbers = frozenset(node_number(node) for node in _walk_all([start]))


# From an autograd node to its forward op. Nodes are numbered in forward order, per thread. The
# first op traced while a number is the latest one is the forward op of that node.


@dataclass(slots=True)
class _Numbered:
    numbers: list[int] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)


class ForwardCalls:
    """The calls that created a node, by node number."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._threads: dict[int, _Numbered] = {}

    def note(self, call: TracedCall) -> None:
        """Record a call, before the next one in this thread."""
        number = last_node_number()
        known = self._threads.setdefault(threading.get_ident(), _Numbered())
        if number >= 0 and (not known.numbers or number > known.numbers[-1]):
            call.number = number
            known.numbers.append(number)
            known.calls.append(call)

    def of(self, node: Any, *, nested: bool) -> TracedCall | None:
        """The forward op of a node. `nested`: a forward recomputed in this thread created the
        graph."""
        number = node_number(node)
        known = self._threads.get(threading.get_ident()) if nested else None
        if known is None or not known.numbers:
            known = self._threads.get(self._main)
        if known is None or not 0 <= number < LEAF_NUMBER:
            return None
        # A node without an op belongs to the previous op: writing through a view creates two.
        at = bisect_right(known.numbers, number) - 1
        return known.calls[at] if at >= 0 else None
