"""Which activation a prediction comes straight from, seen through reshapes and the like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

_ACTIVATIONS = {
    "SoftmaxBackward": "softmax",
    "LogSoftmaxBackward": "log_softmax",
    "SigmoidBackward": "sigmoid",
    "HardsigmoidBackward": "sigmoid",
    "TanhBackward": "tanh",
    "ReluBackward": "relu",
}
_SAME_VALUES = (
    "AsStridedBackward",
    "CatBackward",
    "ClampBackward",
    "ClampMaxBackward",
    "ClampMinBackward",
    "CloneBackward",
    "ExpandBackward",
    "FlattenBackward",
    "NativeDropoutBackward",
    "PermuteBackward",
    "RepeatBackward",
    "ReshapeAliasBackward",
    "SqueezeBackward",
    "StackBackward",
    "SwapaxesBackward",
    "TBackward",
    "ToCopyBackward",
    "TransposeBackward",
    "UnflattenBackward",
    "UnsafeViewBackward",
    "UnsqueezeBackward",
    "ViewBackward",
)
_PARTS = (
    "GatherBackward",
    "IndexBackward",
    "IndexSelectBackward",
    "MaskedSelectBackward",
    "NarrowBackward",
    "SelectBackward",
    "SliceBackward",
    "SplitBackward",
    "UnbindBackward",
)
FURTHEST = 12


@dataclass(frozen=True, slots=True)
class Origin:
    """An activation and how a tensor was taken from its output."""

    activation: str
    node: Any
    whole: bool
    """Nothing was cut out of it: what sums to 1 there does so here."""

    @property
    def dim(self) -> int | None:
        """The axis of a softmax, counted from the front."""
        dim = getattr(self.node, "_saved_dim", None)
        shape = self.shape
        if not isinstance(dim, int) or not shape:
            return None
        if dim >= 1 << 63:  # a negative number, kept without its sign
            dim -= 1 << 64
        return dim % len(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the activation's output."""
        described = getattr(self.node, "_input_metadata", None)
        return tuple(described[0].shape) if described else ()


def origin_of(tensor: Tensor) -> Origin | None:
    """The activation whose output this tensor is, if it is one's."""
    node, whole = tensor.grad_fn, True
    for _ in range(FURTHEST):
        if node is None:
            return None
        name = node.name().rstrip("0123456789")
        if name in _ACTIVATIONS:
            return Origin(_ACTIVATIONS[name], node, whole)
        if name in _PARTS:
            whole = False
        elif name not in _SAME_VALUES:
            return None
        followed = [following for following, _ in node.next_functions if following is not None]
        if len({following.name() for following in followed}) != 1:
            return None
        whole = whole and len(followed) == 1
        node = followed[0]
    return None
