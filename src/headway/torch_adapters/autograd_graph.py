"""Walks the autograd graph of a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from headway.torch_adapters.op_recording.op_frames import in_checkpointed_forward
from headway.torch_adapters.private_parts import private_method, private_part

MAX_NODES = 2000
"""Enough to meet every dtype of a deep model, little enough to be free."""
LEAF = 1 << 63
"""Nodes are numbered as they are made; those of parameters stand above every number."""


node_number: Callable[[Any], int] = private_method(
    "torch._C._FunctionBase._sequence_nr",
    lambda node: 0,
    without="the order of nodes is unknown: every node counts as older than the step",
)
"""Nodes of one thread are numbered in the order of the forward pass."""

_saved_tensor_hooks: Callable[[bool], Any] = private_part(
    "torch._C._autograd._top_saved_tensors_default_hooks",
    lambda ignore_tracing: in_checkpointed_forward() or None,
    without="activation checkpointing is recognised by its frame, other hooks are not",
)


def saved_tensor_hooks_active() -> bool:
    """Whether saved-tensor hooks are in force: activation checkpointing sets them."""
    return _saved_tensor_hooks(False) is not None


def input_metadata(node: Any) -> Sequence[Any]:
    """Shapes and dtypes of a node's gradients in backward; empty if torch does not expose them."""
    found: Sequence[Any] = getattr(node, "_input_metadata", None) or ()
    return found


def saved_value(node: Any, *names: str) -> Any:
    """What a node has saved under the first of these names: `dim` of a softmax. None without it."""
    for name in names:
        value = getattr(node, f"_saved_{name}", None)
        if value is not None:
            return value
    return None


def saved_value_errors(node: Any) -> list[str]:
    """Errors that reading the saved tensors of a node raises: one was written to since."""
    found = []
    for name in dir(node):
        if name.startswith("_saved_"):
            try:
                getattr(node, name)
            except RuntimeError as error:
                found.append(str(error))
    return found


OP_ROLES = {
    "Abs": "sample",
    "AdaptiveAvgPool2D": "range",
    "Add": "linear",
    "Alias": "term range linear",
    "Amax": "range",
    "Amin": "range",
    "AsStrided": "value range linear",
    "AvgPool": "range",
    "AvgPool1D": "range",
    "AvgPool2D": "range",
    "Cat": "value linear",
    "Clamp": "value",
    "ClampMax": "value",
    "ClampMin": "value",
    "Clone": "term value range sample linear",
    "Contiguous": "range",
    "CopySlices": "linear",
    "Diag": "linear",
    "Diagonal": "linear",
    "Div": "term sample linear",
    "Dot": "linear",
    "Einsum": "linear",
    "Expand": "term value range linear weight",
    "Flatten": "value range sample linear",
    "Gather": "part range sample linear",
    "Index": "part range sample linear",
    "IndexSelect": "part range sample linear",
    "MaskedFill": "sample linear",
    "MaskedSelect": "part range sample linear",
    "Max": "range",
    "MaxPool2DWithIndices": "range",
    "Mean": "range linear",
    "Min": "range",
    "Mul": "term sample linear",
    "NanToNum": "term",
    "Nansum": "linear",
    "Narrow": "part range linear",
    "NativeDropout": "value",
    "Neg": "term sample linear",
    "Permute": "value range sample linear weight",
    "Pow": "sample",
    "Repeat": "value range",
    "ReshapeAlias": "term value range sample linear",
    "Rsub": "linear",
    "Select": "term part range sample linear",
    "Slice": "part range sample linear",
    "Sort": "range",
    "Split": "part range linear",
    "SplitWithSizes": "range",
    "Squeeze": "term value range sample linear",
    "Stack": "value linear",
    "Sub": "sample linear",
    "Sum": "linear",
    "Swapaxes": "value range",
    "T": "value range linear weight",
    "ToCopy": "term value range linear weight",
    "Topk": "range",
    "Trace": "linear",
    "Transpose": "value range sample linear weight",
    "Unbind": "part range linear",
    "Unflatten": "value range",
    "UnsafeView": "term value range sample linear weight",
    "Unsqueeze": "term value range sample linear weight",
    "View": "term value range sample linear weight",
    "Where": "sample linear",
}
"""Ops that pass values on, by node kind, with the roles in which they do:

- `term`: passes on a term of a sum, possibly with a factor
- `value`: returns the values of its input unchanged, in another shape or order
- `part`: returns some of the values of its input
- `range`: the range of its output is within that of its input
- `sample`: each value stays in the row of its sample
- `linear`: linear in the only input that has a graph
- `weight`: leads from a matrix product to its parameter
"""


def ops_with_role(role: str) -> frozenset[str]:
    """The node kinds in `OP_ROLES` with this role."""
    return frozenset(op for op, roles in OP_ROLES.items() if role in roles.split())


def node_kind(node: Any) -> str:
    """`Softplus` for `SoftplusBackward0`."""
    name: str = node.name().rpartition("::")[2]
    return name.partition("Backward")[0]


def is_custom_node(node: Any, depth: int = 2) -> bool:
    """Whether an `autograd.Function` or a custom op made this, at most a few nodes (a bias, a view)
    before."""
    if node is None or isinstance(node, BackwardCFunction):
        return node is not None
    return depth > 0 and any(is_custom_node(item, depth - 1) for item in next_nodes(node))


NEAR_NODES = 48
"""How far a custom function is looked for in the graph of one module."""


def custom_dtypes(output: Tensor, weights: Iterable[Tensor]) -> list[Any]:
    """The dtypes of what `autograd.Function`s behind an output have made from these weights."""
    own = {id(weight) for weight in weights}
    found = []
    for node in walk_graph([output.grad_fn], most=NEAR_NODES):
        if isinstance(node, BackwardCFunction):
            read = walk_graph([node], most=8)
            kinds = [each.dtype for each in input_metadata(node)[:1]]
            if kinds and any(id(getattr(item, "variable", None)) in own for item in read):
                found += kinds
    return found


def next_nodes(node: Any) -> list[Any]:
    """The nodes that a node's inputs came from."""
    return [following for following, _ in node.next_functions if following is not None]


def dtypes_in_graph(roots: Sequence[Tensor]) -> set[str]:
    """The dtypes of the values that flow through the graph of these tensors."""
    found = {str(root.dtype).removeprefix("torch.") for root in roots}
    for node in walk_graph(root.grad_fn for root in roots):
        for described in input_metadata(node):
            found.add(str(described.dtype).removeprefix("torch."))
    return found


def walk_graph(
    starts: Iterable[Any],
    *,
    after: int | None = None,
    most: int = MAX_NODES,
    skip: Callable[[Any], bool] | None = None,
) -> Iterator[Any]:
    """The nodes of a graph from its end, breadth first, each once.

    With `after`, only those computed after that number; with `skip`, not those and not what is
    behind them.
    """
    todo: deque[Any] = deque(node for node in starts if node is not None)
    seen: set[Any] = set(todo)
    while todo:
        node = todo.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is None or following in seen or len(seen) >= most:
                continue
            if skip is not None and skip(following):
                continue
            if after is None or after < node_number(following) < LEAF:
                seen.add(following)
                todo.append(following)


def find_earliest_node(node: Any, *, after: int, most: int = 512) -> Any:
    """The end of the path that leads to what was computed first, after a number.

    Whatever of this forward is kept with its graph keeps that node, too, or nearly always.
    """
    for _ in range(most):
        oldest, number = None, LEAF
        for following, _ in node.next_functions:
            if following is not None and after < (made := node_number(following)) < number:
                oldest, number = following, made
        if oldest is None:
            return node
        node = oldest
    return node
