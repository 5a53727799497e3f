"""The part of an autograd graph that is the loss formula, and what is noted on its nodes.

From what `backward` was called on, the graph is followed back as far as the model's own layers:
matrix products, convolutions, normalisations, embeddings. Notes are put on the nodes themselves
(`Node.metadata`): they live and go with the graph, so nothing of it is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

MOST_NODES = 1500
_KEY = "headway-loss"
_LAYERS = (
    "Addmm",
    "Addbmm",
    "Addmv",
    "Baddbmm",
    "Bmm",
    "Convolution",
    "Conv",
    "Cudnn",
    "Embedding",
    "Flash",
    "Linear",
    "MkldnnRnn",
    "Miopen",
    "Mm",
    "Mv",
    "NativeBatchNorm",
    "NativeGroupNorm",
    "NativeLayerNorm",
    "FusedRmsNorm",
    "ScaledDotProduct",
    "AccumulateGrad",
    "torch::autograd::AccumulateGrad",
)


def note(result: Any, what: str, facts: Any) -> bool:
    """Put a note on the node that made a tensor; False where no graph is recorded."""
    node = getattr(result, "grad_fn", None)
    if node is None:
        return False
    node.metadata.setdefault(_KEY, {})[what] = facts
    return True


def noted(node: Any, what: str) -> Any:
    """What was noted on a node, or None."""
    return node.metadata.get(_KEY, {}).get(what)


def take(node: Any, what: str) -> Any:
    """The same, and it is not told again."""
    return node.metadata.get(_KEY, {}).pop(what, None)


def zone(roots: Iterable[Tensor]) -> Iterator[Any]:
    """The nodes of the loss formula, from its end."""
    todo = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen = set(todo)
    while todo:
        node = todo.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is None or following in seen or len(seen) >= MOST_NODES:
                continue
            if following.name().startswith(_LAYERS):
                continue
            seen.add(following)
            todo.append(following)
