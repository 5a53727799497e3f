"""Reading the autograd graph of a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

MOST_NODES = 2000
"""Enough to meet every dtype of a deep model, little enough to be free."""


def dtypes_in_graph(roots: Sequence[Tensor]) -> set[str]:
    """The dtypes of the values that flow through the graph of these tensors."""
    found = {str(root.dtype).removeprefix("torch.") for root in roots}
    todo: deque[Any] = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen: set[Any] = set(todo)
    while todo and len(seen) < MOST_NODES:
        node = todo.popleft()
        for described in getattr(node, "_input_metadata", ()):
            found.add(str(described.dtype).removeprefix("torch."))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return found
