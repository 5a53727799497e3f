"""The named parts of a loss: their values, and which ops each was computed by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.replay.calls import Source

MOST_NODES = 200_000


@dataclass(slots=True)
class Component:
    """A named part of the loss."""

    name: str
    value: float
    sources: tuple[Source, ...]
    """Where it comes from, if it is bad."""
    number: int | None
    """Of the node it was made with."""
    numbers: frozenset[int] = frozenset()
    """Of all the nodes of its graph."""


def read_graphs(
    roots: Sequence[Tensor], components: Mapping[str, Tensor], found: Mapping[str, Component]
) -> None:
    """Fill in the graphs: of a component that was detached, that part of the loss's graph which
    begins where the component was made."""
    whole = {node._sequence_nr(): node for node in nodes(root.grad_fn for root in roots)}
    for name, tensor in components.items():
        start = tensor.grad_fn or whole.get(found[name].number)
        found[name].numbers = frozenset(node._sequence_nr() for node in nodes([start]))


def nodes(starts: Iterable[Any]) -> Iterator[Any]:
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
