"""Walks the autograd graph of a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

MAX_NODES = 2000
"""Enough to meet every dtype of a deep model, little enough to be free."""
LEAF = 1 << 63
"""Nodes are numbered as they are made; those of parameters stand above every number."""


def dtypes_in_graph(roots: Sequence[Tensor]) -> set[str]:
    """The dtypes of the values that flow through the graph of these tensors."""
    found = {str(root.dtype).removeprefix("torch.") for root in roots}
    for node in walk_graph(root.grad_fn for root in roots):
        for described in getattr(node, "_input_metadata", ()):
            found.add(str(described.dtype).removeprefix("torch."))
    return found


def walk_graph(
    starts: Iterable[Any], *, after: int | None = None, most: int = MAX_NODES
) -> Iterator[Any]:
    """The nodes of a graph from its end; with `after`, those computed after that number only."""
    todo: deque[Any] = deque(node for node in starts if node is not None)
    seen: set[Any] = set(todo)
    while todo:
        node = todo.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is None or following in seen or len(seen) >= most:
                continue
            if after is None or after < following._sequence_nr() < LEAF:
                seen.add(following)
                todo.append(following)


def find_earliest_node(node: Any, *, after: int, most: int = 512) -> Any:
    """The end of the path that leads to what was computed first, after a number.

    Whatever of this forward is kept with its graph keeps that node, too, or nearly always.
    """
    for _ in range(most):
        oldest, number = None, LEAF
        for following, _ in node.next_functions:
            if following is not None and after < (made := following._sequence_nr()) < number:
                oldest, number = following, made
        if oldest is None:
            return node
        node = oldest
    return node
