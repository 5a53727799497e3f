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
from headway.torch_adapters.autograd_graph import node_number
from headway.torch_adapters.runtime_state import LEAF_NUMBER, last_node_number

# The named parts of a loss: their values, and which ops each was computed by.

MOST_NODES = 200_000


@dataclass(slots=True)
class TracedComponent:
    """A named part of the loss."""

    name: str
    value: float
    sources: tuple[BadInput, ...]
    """Where it comes from, if it is bad."""
    number: int | None
    """Of the node it was made with."""
    numbers: frozenset[int] = frozenset()
    """Of all the nodes of its graph."""


def read_component_graphs(
    roots: Sequence[Tensor], components: Mapping[str, Tensor], found: Mapping[str, TracedComponent]
) -> None:
    """Fill in the graphs: of a component that was detached, that part of the loss's graph which
    begins where the component was made."""
    whole: dict[int | None, Any] = {
        node_number(node): node for node in walk_nodes(root.grad_fn for root in roots)
    }
    for name, tensor in components.items():
        start = tensor.grad_fn or whole.get(found[name].number)
        found[name].numbers = frozenset(node_number(node) for node in walk_nodes([start]))


def walk_nodes(starts: Iterable[Any]) -> Iterator[Any]:
    """Every node of a graph."""
    todo = [node for node in starts if node is not None]
    seen = set(todo)
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


# From a node of autograd to the forward op it belongs to.

# Nodes are numbered in the order of the forward, each thread for itself. The first op that is seen
# while a number is the latest is the op whose backward that node is.


@dataclass(slots=True)
class _Numbered:
    numbers: list[int] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)


class ForwardCalls:
    """The calls that made a node, by its number."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._threads: dict[int, _Numbered] = {}

    def note(self, call: TracedCall) -> None:
        """A call, before the next one in this thread."""
        number = last_node_number()
        known = self._threads.setdefault(threading.get_ident(), _Numbered())
        if number >= 0 and (not known.numbers or number > known.numbers[-1]):
            call.number = number
            known.numbers.append(number)
            known.calls.append(call)

    def of(self, node: Any, *, nested: bool) -> TracedCall | None:
        """The forward op of a node. `nested`: its graph was made in this thread, by a forward that
        was recomputed there."""
        number = node_number(node)
        known = self._threads.get(threading.get_ident()) if nested else None
        if known is None or not known.numbers:
            known = self._threads.get(self._main)
        if known is None or not 0 <= number < LEAF_NUMBER:
            return None
        # A node that no op was seen for belongs to the one before: writing through a view has two.
        at = bisect_right(known.numbers, number) - 1
        return known.calls[at] if at >= 0 else None
