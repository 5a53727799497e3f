"""Edits for mask infinities, means of 0 elements, CTC targets and uninitialised memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.explain.explanation import Origin
from headway.explain.remedies.edits.call_edits import (
    Args,
    CallEdit,
    Kwargs,
    OperandEdit,
    format_plain,
    large_number,
    take_argument,
)
from headway.torch_adapters.op_schema import CLASS_LOSSES, REDUCTION_POSITION, TASK_LOSSES
from headway.torch_adapters.source import Replacement, Statement, StatementCall


class MeanEdit(CallEdit):
    """Replaces the mean of 0 elements by their sum, 0."""

    names = frozenset({"mean"})
    ops = frozenset({"mean"})
    kinds = frozenset({"mean-of-nothing"})
    words = "divide the sum by at least 1: `x.sum() / max(x.numel(), 1)`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take_argument(args, kwargs, 0, "input", "self")
        if not isinstance(subject, Tensor) or subject.numel() > 0:
            return func(*args, **kwargs)
        return call(Tensor.sum, subject)

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        subject = site.operand(0, "input")
        if subject is None or len(site.operands) > 1 or site.keywords:
            return None
        text = source.tight(subject)
        return [(site.node, f"({text}.sum() / max({text}.numel(), 1))")]


class LossEdit(CallEdit):
    """Makes the loss over 0 targets 0."""

    names = frozenset({*TASK_LOSSES, "kl_div"})
    ops = frozenset({"nll_loss", "mse_loss", "binary_cross_entropy"})
    kinds = frozenset({"mean-of-nothing"})
    words = (
        'use `reduction="sum"` and divide by the number of targets that are not ignored, at least 1'
    )

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        target, _ = take_argument(args, kwargs, 1, "target")
        if not isinstance(target, Tensor) or not self._nothing(name, target, args, kwargs):
            return func(*args, **kwargs)
        position = REDUCTION_POSITION[name]
        if len(args) > position:
            return func(*args[:position], "sum", *args[position + 1 :], **kwargs)
        return func(*args, **{**kwargs, "reduction": "sum"})

    @staticmethod
    def _nothing(name: str, target: Tensor, args: Args, kwargs: Kwargs) -> bool:
        reduction, _ = take_argument(args, kwargs, REDUCTION_POSITION[name], "reduction")
        if reduction not in (None, "mean", "batchmean"):
            return False
        if target.numel() == 0 or name not in CLASS_LOSSES or target.is_floating_point():
            return target.numel() == 0
        ignored, _ = take_argument(args, kwargs, _POSITION_OF_IGNORED, "ignore_index")
        kept = target[target != (-100 if ignored is None else ignored)]
        weight, _ = take_argument(args, kwargs, _POSITION_OF_WEIGHT, "weight")
        return not (kept.numel() if weight is None else float(weight[kept].sum()))

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        target = site.operand(1, "target")
        plain = site.name in CLASS_LOSSES and len(site.operands) <= 2
        if target is None or not plain or not set(site.keywords) <= _COUNTED:
            return None
        ignored, weight = site.keywords.get("ignore_index"), site.keywords.get("weight")
        index = "-100" if ignored is None else source.of(ignored)
        labels = source.tight(target)
        counted = f"({labels} != {index}).sum().clamp_min(1)"
        if weight is not None:
            each = f"{source.tight(weight)}[{labels}.clamp_min(0)] * ({labels} != {index})"
            counted = f"({each}).sum().clamp_min(1e-6)"
        call = source.of(site.node)[:-1].rstrip(", ")
        return [(site.node, f'({call}, reduction="sum") / {counted})')]


_POSITION_OF_WEIGHT, _POSITION_OF_IGNORED = 2, 4
_COUNTED = {"target", "ignore_index", "weight"}


class CtcEdit(CallEdit):
    """CTC targets that are too long for their input have probability 0."""

    names = frozenset({"ctc_loss"})
    ops = names
    words = "pass `zero_infinity=True`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return func(*args[:6], **{**kwargs, "zero_infinity": True})

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        if "zero_infinity" in site.keywords or len(site.operands) > 6:
            return None
        call = source.of(site.node)[:-1].rstrip(", ")
        return [(site.node, f"{call}, zero_infinity=True)")]


class MemoryEdit(CallEdit):
    """`torch.empty` returns uninitialised memory: sometimes zeros, sometimes NaN."""

    names = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})
    kinds = frozenset({"uninitialised-memory"})
    words = "create the tensor with `torch.zeros`, or fill it: `torch.empty` does not initialise it"
    anywhere = True

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        made = func(*args, **kwargs)
        return made.zero_() if isinstance(made, Tensor) else made

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        if site.callee is None or site.name == "empty_strided":
            return None
        return [(site.callee, source.of(site.callee).replace("empty", "zeros"))]


# Infinities of masks.

_LOG_OF_EMPTY_SUM = -100.0


class SoftmaxEdit(OperandEdit):
    """Clamps masked scores: the softmax of an all −inf row is NaN, that of equal values uniform.

    For logsumexp the clamped value must be small enough for a loss.
    """

    names = frozenset({"softmax", "log_softmax", "logsumexp", "cross_entropy"})
    ops = frozenset({"softmax", "log_softmax", "logsumexp"})
    kinds = frozenset({"masked-softmax-row"})
    unary = False

    @property
    def words(self) -> str:
        return (
            "do not mask a complete row, or mask with "
            f"{format_plain(-large_number(self.origin))} instead of -inf"
        )

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(self._least(name))

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp_min({format_plain(self._least(name))})"

    def _least(self, name: str) -> float:
        return _LOG_OF_EMPTY_SUM if name == "logsumexp" else -large_number(self.origin)


class AttentionEdit(CallEdit):
    """The same for attention masks."""

    names = frozenset({"scaled_dot_product_attention"})
    kinds = SoftmaxEdit.kinds
    words = "do not mask a complete row"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        args = tuple(self._open(arg) if at == 3 else arg for at, arg in enumerate(args))
        if "attn_mask" in kwargs:
            kwargs = {**kwargs, "attn_mask": self._open(kwargs["attn_mask"])}
        return func(*args, **kwargs)

    def _open(self, mask: Any) -> Any:
        if not isinstance(mask, Tensor):
            return mask
        if mask.dtype is torch.bool:  # True takes part
            return mask | ~mask.any(dim=-1, keepdim=True)
        return mask.clamp_min(-large_number(self.origin))


class InfinityEdit(CallEdit):
    """∞ − ∞ and 0 × ∞: with a large finite value instead of ∞ they are 0."""

    kinds = frozenset({"infinity-minus-infinity", "zero-times-infinity"})

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self.names = frozenset({origin.op, *_ALIASES.get(origin.op, ())})
        self._large = large_number(origin)
        self._numbers: dict[int, float] = {}
        self._tensors = {at for at, operand in enumerate(origin.inputs[:2]) if operand.inf}

    @property
    def words(self) -> str:
        return f"clamp the infinite operand: `{self._clamped('x')}`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return func(*(self._finite(at, arg) for at, arg in enumerate(args)), **kwargs)

    def _finite(self, at: int, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isinf().any()):
            self._tensors.add(at)
            return value.clamp(-self._large, self._large)
        if isinstance(value, float) and math.isinf(value):
            self._numbers[at] = math.copysign(self._large, value)
            return self._numbers[at]
        return value

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        changed: list[Replacement] = []
        for at in sorted({*self._tensors, *self._numbers}):
            operand = site.operand(at, "other")
            if operand is None:
                return None
            if at in self._numbers:
                changed.append((operand, format_plain(self._numbers[at])))
            else:
                changed.append((operand, self._clamped(source.tight(operand))))
        return changed

    def _clamped(self, subject: str) -> str:
        return f"{subject}.clamp({format_plain(-self._large)}, {format_plain(self._large)})"


_ALIASES = {"sub": ("subtract",), "mul": ("multiply",)}
