"""What a call of a loss function was given, whatever the function and however it was passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.preflight.observer import Call
from headway.preflight.spellings import spellings

_REDUCTION_AT = {
    "cross_entropy": 6,
    "nll_loss": 6,
    "binary_cross_entropy": 5,
    "binary_cross_entropy_with_logits": 5,
    "mse_loss": 4,
    "l1_loss": 4,
    "smooth_l1_loss": 4,
    "huber_loss": 2,
    "kl_div": 4,
    "soft_margin_loss": 4,
    "poisson_nll_loss": 7,
    "gaussian_nll_loss": 5,
}
_BY_NUMBER = {0: "none", 1: "mean", 2: "sum"}
LOSSES: tuple[Callable[..., Any], ...] = spellings(*_REDUCTION_AT)
OF_CLASSES = ("cross_entropy", "nll_loss")
"""Losses whose prediction has an axis of classes."""


@dataclass(frozen=True, slots=True)
class LossArguments:
    """The arguments that all loss functions share."""

    function: str
    prediction: Tensor
    target: Tensor
    reduction: str
    ignore_index: int
    weighted: bool
    log_target: bool

    @classmethod
    def of(cls, call: Call) -> LossArguments | None:
        """None where prediction or target is no tensor."""
        prediction, target = call.argument(0, "input"), call.argument(1, "target")
        if not isinstance(prediction, Tensor) or not isinstance(target, Tensor):
            return None
        name = call.name
        of_classes = name in OF_CLASSES
        ignore = call.argument(4, "ignore_index", -100) if of_classes else -100
        second = of_classes or name.startswith("binary")
        weight = call.argument(2, "weight") if second else call.kwargs.get("weight")
        return cls(
            name,
            prediction,
            target,
            _reduction(call),
            ignore if isinstance(ignore, int) else -100,
            isinstance(weight, Tensor),
            call.kwargs.get("log_target") is True,
        )

    @property
    def labels(self) -> bool:
        """Whether the targets are class ids."""
        whole = not self.target.is_floating_point() and not self.target.is_complex()
        return self.function in OF_CLASSES and whole

    @property
    def class_axis(self) -> int:
        """The axis of the prediction along which the classes lie."""
        if self.function in OF_CLASSES:
            return 1 if self.prediction.ndim > 1 else 0
        return self.prediction.ndim - 1


def _reduction(call: Call) -> str:
    if call.kwargs.get("size_average") is False or call.kwargs.get("reduce") is False:
        return "sum" if call.kwargs.get("reduce") is not False else "none"
    said = call.argument(_REDUCTION_AT.get(call.name, 99), "reduction", "mean")
    return _BY_NUMBER.get(said, "mean") if isinstance(said, int) else str(said)
