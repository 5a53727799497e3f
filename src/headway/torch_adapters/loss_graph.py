"""Reads the autograd graph of a loss: the terms of its sum, what follows what, and the nodes of the
formula.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headway.torch_adapters.autograd_graph import next_nodes, node_kind, ops_with_role, walk_graph

# Of what a loss is the sum: reading its graph from the end.

# `loss = (ce + 0.5 * box.mean() / k) * scale` is followed back through sums, factors and whatever
# merely passes a number on, until something is reached that is no sum of others: a term.

MOST_SUM_NODES = 600
"""A sum of more parts is read no further."""

_SUMS = ("Add", "Sub", "Rsub")
_PASSING_TERMS = ops_with_role("term")
_JOINS = ("Stack", "Cat", "CopySlices")
_FOLDS = ("Sum", "Mean")


@dataclass(eq=False, slots=True)
class LossTerm:
    """One addend."""

    node: Any
    number: int
    """Which of the node's outputs it is."""
    path: list[Any] = field(default_factory=list)
    """The nodes between it and where it joins others, those nearest to it first."""
    trail: list[Any] = field(default_factory=list)
    """All nodes on the way to it, from the end of the loss on."""


def find_terms(root: Any, number: int = 0, whole: Container[Any] = ()) -> list[LossTerm]:
    """The addends of the scalar that a node of the graph makes, in the order they are met.

    Nodes in `whole` are terms, whatever they are made of.
    """
    if root is None:
        return []
    found: dict[Any, LossTerm] = {}
    todo: list[tuple[Any, int, list[Any], list[Any]]] = [(root, number, [], [])]
    seen: set[Any] = set()
    while todo:
        node, number, path, trail = todo.pop()
        if len(seen) > MOST_SUM_NODES:
            return []
        kind = node_kind(node)
        following = [(item, at) for item, at in node.next_functions if item is not None]
        if following and node not in whole and _is_linear(node, kind, following):
            if node in seen:
                continue
            seen.add(node)
            # Behind a sum of several terms a new path begins: what is above is not this term's own.
            alone = len(following) == 1 and kind not in _JOINS
            here = [*path, node] if alone else []
            todo += [(item, at, here, [*trail, node]) for item, at in reversed(following)]
        elif node not in found:
            found[node] = LossTerm(node, number, list(reversed(path)), trail)
    return list(found.values())


def find_sums(root: Any) -> set[Any]:
    """The nodes of a loss that are sums and factors of its terms, the last one included."""
    return {node for term in find_terms(root) for node in term.trail}


def _is_linear(node: Any, kind: str, following: Sequence[tuple[Any, int]]) -> bool:
    if kind in _SUMS or kind in _JOINS:
        return True
    if kind in _PASSING_TERMS:
        return len(following) == 1
    if kind in _FOLDS and _numel(node) == 1:
        return _folds_scalars(following[0][0])
    return False


def _folds_scalars(node: Any) -> bool:
    """Whether a sum or mean runs over a list of scalars that was stacked."""
    for _ in range(6):
        kind = node_kind(node)
        following = next_nodes(node)
        if kind == "CopySlices":
            return True
        if kind in _JOINS:
            return all(_numel(item) == 1 for item in following)
        if kind not in _PASSING_TERMS or len(following) != 1:
            return False
        node = following[0]
    return False


def _numel(node: Any) -> int:
    described = getattr(node, "_input_metadata", None) or ()
    count = 1
    for size in described[0].shape if described else (2,):
        count *= int(size)
    return count


# What the graph of a loss says about the calls that made it: what follows what.

# The graph is the same however the forward was written: modules, functions, loops, own classes.

MOST_GRAPH_NODES = 30_000
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
class BackwardGraph:
    """The nodes behind some losses."""

    nodes: set[Any] = field(default_factory=set)
    consumers: dict[Any, list[Any]] = field(default_factory=dict)

    @classmethod
    def behind(cls, starts: Iterable[Any]) -> BackwardGraph:
        """Everything that leads to these nodes."""
        graph = cls()
        todo = deque(node for node in starts if node is not None)
        graph.nodes.update(todo)
        while todo:
            node = todo.popleft()
            for following in next_nodes(node):
                graph.consumers.setdefault(following, []).append(node)
                if following not in graph.nodes and len(graph.nodes) < MOST_GRAPH_NODES:
                    graph.nodes.add(following)
                    todo.append(following)
        return graph

    def behind_products(self) -> set[Any]:
        """The nodes whose values go through a further layer before they reach the losses."""
        found: set[Any] = set()
        todo = [
            following for node in self.nodes if is_product(node) for following in next_nodes(node)
        ]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += next_nodes(node)
        return found

    def is_gate(self, node: Any) -> bool:
        """Whether a value is only multiplied with another one that is computed, too."""
        using = self.consumers.get(node, [])
        return bool(using) and all(
            node_name(item) == "mul" and len(_computed(item)) > 1 for item in using
        )


def node_name(node: Any) -> str:
    """`addmm` for AddmmBackward0."""
    name: str = node.name().lower().rpartition("::")[2]
    return name.partition("backward")[0]


def is_product(node: Any) -> bool:
    """Whether it multiplies with a weight, most likely."""
    name = node_name(node)
    return any(part in name for part in _PRODUCTS)


def is_leaf(node: Any) -> bool:
    """Whether it stands for a parameter, or another tensor that nothing was computed for."""
    return node_name(node) == "accumulategrad"


def is_straight(node: Any) -> bool:
    """Whether a node leaves a linear map linear, or is itself a plain layer."""
    name = node_name(node)
    if name in ("addmm", "mm", "convolution", "embedding"):
        return True
    return _passes(name) and len(_computed(node)) < 2


def through_linear(node: Any) -> Any:
    """Where the value came from, if this node leaves a linear map linear; else None."""
    following = _computed(node)
    return following[0] if len(following) == 1 and _passes(node_name(node)) else None


def _passes(name: str) -> bool:
    return name in _PASSED_EXACTLY or any(part in name for part in _PASSED)


def _computed(node: Any) -> list[Any]:
    """Its inputs without the parameters."""
    return [item for item in next_nodes(node) if not is_leaf(item)]


# The part of an autograd graph that is the loss formula, and what is noted on its nodes.

# From what `backward` was called on, the graph is followed back as far as the model's own layers:
# matrix products, convolutions, normalisations, embeddings. Notes are put on the nodes themselves
# (`Node.metadata`): they live and go with the graph, so nothing of it is kept.

MOST_FORMULA_NODES = 1500
_NOTES_KEY = "headway-loss"
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


def add_note(result: Any, what: str, facts: Any) -> bool:
    """Put a note on the node that made a tensor; False where no graph is recorded."""
    node = getattr(result, "grad_fn", None)
    if node is None:
        return False
    node.metadata.setdefault(_NOTES_KEY, {})[what] = facts
    return True


def read_note(node: Any, what: str) -> Any:
    """The note of this name on a node, or None."""
    return node.metadata.get(_NOTES_KEY, {}).get(what)


def take_note(node: Any, what: str) -> Any:
    """Return a note and remove it from the node."""
    return node.metadata.get(_NOTES_KEY, {}).pop(what, None)


def formula_nodes(roots: Iterable[Tensor]) -> Iterator[Any]:
    """The nodes of the loss formula, from its end."""
    return walk_graph(
        (root.grad_fn for root in roots),
        most=MOST_FORMULA_NODES,
        skip=is_formula_end,
    )


def is_formula_end(node: Any) -> bool:
    """Whether a node belongs to a layer of the model: the loss formula ends there."""
    return bool(node.name().startswith(_LAYERS))
