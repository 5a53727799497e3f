"""Edits for functions with a limited domain: log, exp, acos, sqrt, pow, norm, std."""

from __future__ import annotations

import ast
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
    eps_near_one,
    format_plain,
    take_argument,
)
from headway.explain.remedies.float32 import dtypes_of, involves_float16
from headway.torch_adapters.source import Replacement, Statement, StatementCall


class LogEdit(OperandEdit):
    names = frozenset({"log", "log2", "log10", "log1p", "entr"})
    ops = names
    kinds = frozenset({"log-of-zero", "log-of-negative"})

    @property
    def words(self) -> str:
        return f"clamp the argument of the logarithm: `.clamp_min({format_plain(self.eps)})`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(self._least(name))

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp_min({format_plain(self._least(name))})"

    def _least(self, name: str) -> float:
        return eps_near_one(self.origin) - 1 if name == "log1p" else self.eps


class XLogYEdit(CallEdit):
    """x·log(y): clamps y."""

    names = frozenset({"xlogy"})
    ops = names
    words = "clamp the second argument of xlogy: `.clamp_min(eps)`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take_argument(args, kwargs, 1, "other")
        if not isinstance(subject, Tensor):
            return func(*args, **kwargs)
        return call(func, subject.clamp_min(self.eps))

    def rewrite(self, source: Statement, site: StatementCall) -> list[Replacement] | None:
        subject = site.operand(1, "other")
        if subject is None:
            return None
        return [(subject, f"{source.tight(subject)}.clamp_min({format_plain(self.eps)})")]


class ExpEdit(OperandEdit):
    """Clamps well below log(max): later ops need some range too."""

    names = frozenset({"exp", "expm1", "exp2", "sinh", "cosh"})
    ops = names
    kinds = frozenset({"exp-overflow"})

    @property
    def words(self) -> str:
        return f"clamp the argument of the exponential: `{self.written('exp', 'x')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        if name == "sinh":
            return subject.clamp(-self._most, self._most)
        return subject.clamp(max=self._most)

    def written(self, name: str, subject: str) -> str:
        if name == "sinh":
            return f"{subject}.clamp(-{self._most}, {self._most})"
        return f"{subject}.clamp(max={self._most})"

    @property
    def _most(self) -> int:
        if involves_float16(self.origin):
            return 10
        return 500 if dtypes_of(self.origin) == {"float64"} else 50


class UnitRangeEdit(OperandEdit):
    """Inverse functions: their derivative is infinite at ±1, and they are undefined beyond."""

    names = frozenset(
        {"acos", "asin", "arccos", "arcsin", "atanh", "arctanh", "erfinv", "acosh", "arccosh"}
    )
    ops = names
    kinds = frozenset({"acos-at-one"})

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self._most = 1 - eps_near_one(origin)
        self._least = 1 + eps_near_one(origin)

    @property
    def words(self) -> str:
        return f"clamp the argument to the domain: `{self.written('acos', 'x')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        if name in _ABOVE_ONE:
            return subject.clamp_min(self._least)
        return subject.clamp(-self._most, self._most)

    def written(self, name: str, subject: str) -> str:
        if name in _ABOVE_ONE:
            return f"{subject}.clamp_min({format_plain(self._least)})"
        return f"{subject}.clamp(-{format_plain(self._most)}, {format_plain(self._most)})"


_ABOVE_ONE = ("acosh", "arccosh")


class SqrtEdit(OperandEdit):
    small = 1e-8
    names = frozenset({"sqrt", "rsqrt"})
    ops = names
    kinds = frozenset({"sqrt-of-negative", "sqrt-at-zero"})

    @property
    def words(self) -> str:
        return f"keep the argument of the square root above 0: `{self.written('sqrt', 'x')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(self.eps) if self._negative else subject + self.eps

    def written(self, name: str, subject: str) -> str:
        eps = format_plain(self.eps)
        return f"{subject}.clamp_min({eps})" if self._negative else f"{subject} + {eps}"

    @property
    def _negative(self) -> bool:
        lows = [operand.low for operand in self.origin.inputs if operand.low is not None]
        return self.origin.kind == "sqrt-of-negative" or (
            self.origin.phase == "forward" and any(low < 0 for low in lows)
        )

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        found = super().rewrite(source, site)
        if found and site.method and not self._negative:  # x.sqrt(): (x + eps).sqrt()
            return [(node, f"({text})") for node, text in found]
        return found


class PowEdit(OperandEdit):
    small = 1e-8
    names = frozenset({"pow", "float_power"})
    ops = frozenset({"pow", "float_power"})
    kinds = frozenset({"pow-singular"})
    unary = False

    @property
    def words(self) -> str:
        return f"keep the base of the power away from 0: `{self.written('pow', 'x')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        if self._both_signs:
            return torch.where(subject.abs() < self.eps, self.eps, subject)
        return subject.clamp_min(self.eps)

    def written(self, name: str, subject: str) -> str:
        eps = format_plain(self.eps)
        if self._both_signs:
            return f"torch.where({subject}.abs() < {eps}, {eps}, {subject})"
        return f"{subject}.clamp_min({eps})"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        exponent, _ = take_argument(args, kwargs, 1, "exponent")
        return (
            func(*args, **kwargs) if _harmless(exponent) else super().run(name, func, args, kwargs)
        )

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        exponent = site.operand(1, "exponent")
        if isinstance(exponent, ast.Constant) and _harmless(exponent.value):
            return None
        return super().rewrite(source, site)

    @property
    def _both_signs(self) -> bool:
        """Negative bases are valid and 0 is not: 1 / x² written as x ** -2."""
        base = self.origin.inputs[0] if self.origin.inputs else None
        return base is not None and base.zero > 0 and base.low is not None and base.low < 0


def _harmless(exponent: Any) -> bool:
    """Positive integer powers are finite for all bases."""
    return isinstance(exponent, (int, float)) and exponent >= 1 and exponent == int(exponent)


class NormEdit(CallEdit):
    """Adds eps under the square root; for other norms, replaces zero elements."""

    names = frozenset({"norm", "vector_norm"})
    ops = frozenset({"norm", "linalg_vector_norm", "linalg_norm"})
    kinds = frozenset({"norm-at-zero"})

    @property
    def words(self) -> str:
        return f"compute the norm as `(x.square().sum(dim) + {format_plain(self.eps)}).sqrt()`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, order, dim, keepdim = _norm_arguments(*args, **kwargs)
        if order == 2 and getattr(func, "__name__", "") == "linalg_norm":  # of matrices: no sum
            return func(*args, **kwargs)
        if order not in _EUCLIDEAN:
            nonzero = torch.where(subject.abs() < self.eps, self.eps, subject)
            return func(nonzero, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
        squares = subject.square()
        summed = squares.sum() if dim is None else squares.sum(dim, keepdim=keepdim)
        return (summed + self.eps).sqrt()

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        subject, order = site.operand(0, "input", "x", "A"), site.operand(1, "p", "ord")
        if subject is None or (order is not None and source.of(order) not in ("2", "2.0")):
            return None
        if order is not None and "linalg.norm" in source.of(site.node):
            return None
        dim, keepdim = site.operand(2, "dim"), site.operand(3, "keepdim")
        inside = [source.of(dim)] if dim is not None else []
        inside += [f"keepdim={source.of(keepdim)}"] if keepdim is not None else []
        summed = f"{source.tight(subject)}.square().sum({', '.join(inside)})"
        return [(site.node, f"({summed} + {format_plain(self.eps)}).sqrt()")]


class HypotEdit(CallEdit):
    """The norm of two values."""

    names = frozenset({"hypot"})
    ops = names

    @property
    def words(self) -> str:
        return f"compute hypot as `(a.square() + b.square() + {format_plain(self.eps)}).sqrt()`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        one, two = args
        return (one.square() + two.square() + self.eps).sqrt()

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        one, two = site.operand(0, "input"), site.operand(1, "other")
        if one is None or two is None:
            return None
        squares = f"{source.tight(one)}.square() + {source.tight(two)}.square()"
        return [(site.node, f"({squares} + {format_plain(self.eps)}).sqrt()")]


_EUCLIDEAN = (None, 2, "fro")


def _norm_arguments(
    input: Tensor, p: Any = None, dim: Any = None, keepdim: bool = False, **rest: Any
) -> tuple[Tensor, Any, Any, bool]:
    return input, rest.get("ord", p), dim, keepdim


class StdEdit(CallEdit):
    """std of one value is 0 / 0, and its derivative is infinite at 0."""

    names = frozenset({"std", "var"})
    ops = frozenset({"std", "var", "std_mean", "var_mean"})
    kinds = frozenset({"std-singular"})

    @property
    def words(self) -> str:
        return f"compute std as `(x.var(dim, correction=0) + {format_plain(self.eps)}).sqrt()`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if self._of_one_number:
            if any(isinstance(arg, bool) for arg in args):
                return func(*args, **kwargs)
            kwargs = {key: item for key, item in kwargs.items() if key not in _CORRECTIONS}
            kwargs["correction"] = min(1, _reduced(*args, **kwargs) - 1)
        variance = torch.var(*args, **kwargs)
        return variance if name == "var" else (variance + self.eps).sqrt()

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        callee, node = site.callee, site.node
        if callee is None:
            return None
        head = source.of(callee)[: -len(site.name)] + "var"
        first = site.operands[1:] if site.method else site.operands
        inside = [source.of(arg) for arg in first]
        kept = site.keywords
        if self._of_one_number:
            if any(text in ("True", "False") for text in inside):
                return None
            kept = {key: item for key, item in kept.items() if key not in _CORRECTIONS}
        inside += [f"{key}={source.of(item)}" for key, item in kept.items()]
        inside += [self._correction(source, site)] if self._of_one_number else []
        variance = f"{head}({', '.join(inside)})"
        text = variance if site.name == "var" else f"({variance} + {format_plain(self.eps)}).sqrt()"
        return [(node, text)]

    @staticmethod
    def _correction(source: Statement, site: StatementCall) -> str:
        """The usual one, and 0 for one value: healthy results stay as they are."""
        subject, dim = site.operand(0, "input"), site.operand(1, "dim")
        if subject is None or isinstance(dim, ast.Tuple | ast.List):
            return "correction=0"
        text = source.tight(subject)
        count = f"{text}.numel()" if dim is None else f"{text}.shape[{source.of(dim)}]"
        return f"correction=min(1, {count} - 1)"

    @property
    def _of_one_number(self) -> bool:
        return self.origin.phase == "forward"


_CORRECTIONS = ("unbiased", "correction")


def _reduced(input: Tensor, dim: Any = None, **rest: Any) -> int:
    """Number of values that each result is computed from."""
    dims = [dim] if isinstance(dim, int) else dim or range(input.ndim)
    return math.prod(input.shape[at] for at in dims)
