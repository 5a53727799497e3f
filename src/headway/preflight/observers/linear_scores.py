"""Losses that only pull up the scores of the labels: a likelihood without its normalisation.

The derivative of the loss by the scores of the last layer tells, however it is written: one entry
in each row, that of the label, and none of it depends on the scores. Such a loss has no lower end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from headway.live.discovery import leaves
from headway.preflight.loss_facts import dtype_of
from headway.preflight.loss_zone import MOST_NODES, note, noted
from headway.preflight.observer import Call, Observer
from headway.preflight.reach import kind_of
from headway.preflight.spellings import spellings

TOPIC = "loss-scores"
STEPS = 3
_LAYERS = ("Addmm", "Mm", "Baddbmm", "Bmm", "Convolution", "Linear", "Mkldnn")
_LINEAR = (
    "Add", "Alias", "AsStrided", "Cat", "Clone", "CopySlices", "Diag", "Diagonal", "Div", "Dot",
    "Einsum", "Expand", "Flatten", "Gather", "Index", "IndexSelect", "MaskedFill", "MaskedSelect",
    "Mean", "Mul", "Nansum", "Narrow", "Neg", "Permute", "ReshapeAlias",
    "Rsub", "Select", "Slice", "Split", "Squeeze", "Stack", "Sub", "Sum", "T", "ToCopy", "Trace",
    "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View", "Where",
)  # fmt: skip
"""Operations that are linear in what has a graph, where only one input of them has one."""
_PASSING = ("T", "Transpose", "Permute", "View", "ToCopy", "Unsqueeze", "Expand", "UnsafeView")
_JOINS = ("Add", "Cat", "Stack", "Sub", "CopySlices", "Where")


class LinearScores(Observer):
    """Looks at the derivative by the scores, in the first steps."""

    functions = spellings("mean", "sum", "nansum", "div", "neg", "mul")

    def start(self) -> None:
        self._told = False

    def function_ended(self, call: Call) -> None:
        result = call.result
        if self.scene.step < STEPS and isinstance(result, Tensor) and result.numel() == 1:
            note(result, "summed_at", self.scene.place())

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._told or self.scene.step >= STEPS or len(roots) != 1:
            return
        root = roots[0]
        ends = [] if root.grad_fn is None else _ends(root.grad_fn)
        if not ends or len(self.scene.optimizers) > 1 or not self._trains(root):
            return
        edges = [GradientEdge(node, 0) for node in ends]
        found = torch.autograd.grad(root, edges, retain_graph=True, allow_unused=True)
        if any(item is None or item.ndim < 2 for item in found):  # type: ignore[redundant-expr]
            return
        pulls = [_classes_last(item, node) for item, node in zip(found, ends, strict=True)]
        if all(map(_pulls_one_of_each_row, pulls)):
            self._told = True
            self.evidence.tell(
                TOPIC,
                {
                    "function": "loss",
                    "classes": pulls[0].shape[-1],
                    "rows": sum(item.numel() // item.shape[-1] for item in pulls),
                    "prediction": {"shape": list(found[0].shape), "dtype": dtype_of(found[0])},
                    "place": _place(root.grad_fn) or self.scene.place(),
                },
            )

    def _trains(self, root: Tensor) -> bool:
        """Whether all that is reached is trained by it; a critic's scores are judged by another."""
        held = {
            id(p) for item in self.scene.optimizers for g in item.param_groups for p in g["params"]
        }
        return all(id(leaf) in held for leaf in leaves([root]))


def _ends(root: Any) -> list[Any]:
    """The layers a loss is linear in; empty where it is not linear, or where one is met twice."""
    ends: list[Any] = []
    todo, seen = [root], {root}
    while todo:
        node = todo.pop()
        kind = kind_of(node)
        following = [item for item, _ in node.next_functions if item is not None]
        if kind.startswith(_LAYERS):
            if _has_weight(node):
                ends.append(node)
                continue
            if len(following) > 1:
                return []  # similarities, which are bounded by other means
        elif kind not in _LINEAR or (len(following) > 1 and kind not in _JOINS):
            return []
        for item in following:
            if item not in seen:
                seen.add(item)
                todo.append(item)
        if len(seen) > MOST_NODES:
            return []
    return ends if len(ends) <= 512 else []


def _has_weight(node: Any) -> bool:
    """Whether one factor of a product is a parameter."""
    for following, _ in node.next_functions:
        for _ in range(4):
            if following is None or kind_of(following) not in _PASSING:
                break
            following = following.next_functions[0][0]
        if following is not None and hasattr(following, "variable"):
            return True
    return False


def _classes_last(gradient: Tensor, node: Any) -> Tensor:
    of_maps = kind_of(node).startswith("Convolution") and gradient.ndim > 2
    return gradient.movedim(1, -1) if of_maps else gradient


def _pulls_one_of_each_row(gradient: Tensor) -> bool:
    rows = gradient.detach().reshape(-1, gradient.shape[-1])
    pulled = rows != 0
    each = pulled.sum(1)
    if bool((rows > 0).any()) or bool((each > 1).any()) or not bool(each.any()):
        return False
    columns = rows.argmin(1)[each > 0]
    # Always the same one is a choice of an output, not of a label.
    return rows.shape[1] > 1 and columns.numel() > 3 and bool((columns != columns[0]).any())


def _place(root: Any) -> dict[str, Any] | None:
    for node in _downwards(root):
        place = noted(node, "summed_at")
        if place is not None:
            found: dict[str, Any] = place
            return found
    return None


def _downwards(node: Any) -> Iterator[Any]:
    for _ in range(20):
        yield node
        following = [item for item, _ in node.next_functions if item is not None]
        if len(following) != 1:
            return
        node = following[0]
