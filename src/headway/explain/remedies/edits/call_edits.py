"""Edits of a single call that keep it finite; edits of divisions."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from headway.explain.explanation import Operand, Origin
from headway.explain.remedies.float32 import dtypes_of, involves_float16
from headway.torch_adapters.source import Replacement, Span, Statement, StatementCall

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class CallEdit(ABC):
    """Changes calls while the step runs, and shows how to write the same change."""

    names: frozenset[str]
    """The torch functions that it changes."""
    ops: ClassVar[frozenset[str]] = frozenset()
    """Ops of the origins it is for, of any kind."""
    kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of the origins it is for, of any op."""
    anywhere: ClassVar[bool] = False
    """Whether it changes calls at all lines."""
    small: ClassVar[float] = 1e-12
    small_in_float16: ClassVar[float] = 1e-4
    """The value to add or to clamp to. It must not be 0 in the dtype (1e-8 is in float16), and
    results must neither overflow nor have huge gradients."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.eps = self.small_in_float16 if involves_float16(origin) else self.small

    @property
    @abstractmethod
    def words(self) -> str:
        """What to do if the line cannot be rewritten; follows `At loss.py:31`."""

    @abstractmethod
    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run the changed call."""

    def edited(self, source: Statement) -> str | None:
        """The changed line; None if the call is not found in it."""
        found = self.replacements(source)
        return None if found is None else source.replaced(found)

    def replacements(self, source: Statement) -> list[Span] | None:
        """What changes in the line; None if the call is not found in it."""
        return source.replacements(self.names, lambda site: self.rewrite(source, site))

    def alternatives(self, source: Statement) -> list[list[Span]]:
        """Changes to try: of all calls in the line, or of one if they contain each other."""
        found = self.replacements(source)
        each = source.by_site(self.names, lambda site: self.rewrite(source, site))
        return each if found is None else [found]

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        """Replacements for one call of the line."""
        return None


class OperandEdit(CallEdit):
    """Changes the first operand: `torch.log(p)` becomes `torch.log(p.clamp_min(1e-12))`."""

    unary: ClassVar[bool] = True
    """The method takes no arguments; `self.log("loss", loss)` is another one."""

    @abstractmethod
    def change(self, name: str, subject: Tensor) -> Tensor:
        """The changed operand."""

    @abstractmethod
    def written(self, name: str, subject: str) -> str:
        """The changed operand as source code."""

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take_argument(args, kwargs, 0, "input", "self")
        if not isinstance(subject, Tensor):
            return func(*args, **kwargs)
        if is_in_place(func):
            return call(func, subject.copy_(self.change(name, subject.clone())))
        return call(func, self.change(name, subject))

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        subject = site.operand(0, "input")
        if subject is None or (self.unary and site.method and len(site.operands) > 1):
            return None
        return [(subject, self.written(site.name, source.tight(subject)))]


def take_argument(
    args: Args, kwargs: Kwargs, position: int, *keywords: str
) -> tuple[Any, Callable[[Any, Any], Any]]:
    """An argument by position or name, and a function that makes the call with another value."""
    if position < len(args):
        head, tail = args[:position], args[position + 1 :]
        return args[position], lambda func, value: func(*head, value, *tail, **kwargs)
    keyword = next((name for name in keywords if name in kwargs), None)
    if keyword is None:
        return None, lambda func, value: func(*args, **kwargs)
    return kwargs[keyword], lambda func, value: func(*args, **{**kwargs, keyword: value})


def is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def eps_near_one(origin: Origin) -> float:
    """An eps for comparisons with 1: `1 - eps` must not round to 1."""
    dtypes = dtypes_of(origin)
    if "bfloat16" in dtypes:
        return 1e-2
    if "float16" in dtypes:
        return 1e-3
    return 1e-12 if dtypes == {"float64"} else 1e-6


def large_number(origin: Origin) -> float:
    """A finite replacement for infinity, below the maximum of the dtype."""
    return 6e4 if involves_float16(origin) else 1e30


def format_plain(number: float) -> str:
    """A short literal: 1e-12, 0.999999, -1e30."""
    return f"{number:.12g}".replace("e+", "e")


# Edits for division by zero: clamp the denominator.

_BY_ZERO = frozenset({"division-by-zero", "zero-over-zero"})


class DivisionEdit(CallEdit):
    """A count is at least 1, a non-negative sum at least eps; other divisors keep their sign.

    A line may contain several divisions, so the text describes the divisors seen during the run.
    """

    small, small_in_float16 = 1e-6, 1e-3
    names = frozenset({"div", "div_", "divide", "true_divide", "reciprocal", "__rdiv__"})
    ops = frozenset({"div", "true_divide", "reciprocal"})
    kinds = _BY_ZERO | {"norm-at-zero", "std-singular"}

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self._met: set[str] = set()
        below = _denominator(origin)
        self._negative = below is not None and below.low is not None and below.low < 0
        if below is not None and below.dtype.removeprefix("torch.").startswith("int"):
            self._met.add("count")

    @property
    def words(self) -> str:
        return f"clamp the denominator: `{self._written('d')}`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take_argument(args, kwargs, 0 if name in _INVERTED else 1, "other", "input")
        if not isinstance(subject, Tensor):
            return call(func, self._nonzero(subject))
        if name in _INVERTED and is_in_place(func):
            return call(func, subject.copy_(self._away(subject.clone())))
        return call(func, self._away(subject))

    def _nonzero(self, number: float) -> float:
        if number != 0:
            return number
        self._met.add("number")
        return 1

    def _away(self, subject: Tensor) -> Tensor:
        if not subject.is_floating_point():
            self._met.add("count")
            return subject.clamp_min(1)
        self._met.add("float")
        self._negative |= bool((subject < 0).any())
        return torch.where(subject.abs() < self.eps, self.eps, subject)

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        subject = site.operand(0 if site.name == "reciprocal" else 1, "other")
        if subject is None or isinstance(subject, ast.Constant):
            return None
        if _is_count(subject):
            return [(subject, f"max({source.of(subject)}, 1)")]
        return [(subject, self._written(source.tight(subject), source.of(subject)))]

    def replacements(self, source: Statement) -> list[Span] | None:
        return super().replacements(source) if len(self._met) < 2 else None

    def _written(self, subject: str, bare: str = "") -> str:
        if self._met == {"number"}:
            return f"max({bare or subject}, 1)"
        if self._met == {"count"}:
            return f"{subject}.clamp_min(1)"
        eps = format_plain(self.eps)
        if self._negative:
            return f"torch.where({subject}.abs() < {eps}, {eps}, {subject})"
        return f"{subject}.clamp_min({eps})"


def _is_count(node: ast.expr) -> bool:
    """Whether an expression is a Python number: `len(x)`, `x.numel()`, `x.shape[0]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if not isinstance(node, ast.Call):
        return False
    callee = node.func
    if isinstance(callee, ast.Name):
        return callee.id == "len"
    return isinstance(callee, ast.Attribute) and callee.attr in ("numel", "nelement")


class EpsEdit(CallEdit):
    """Functions with an eps argument that is too small for the dtype."""

    small, small_in_float16 = 1e-6, 1e-3
    names = frozenset(
        {"normalize", "cosine_similarity", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
    )
    kinds = _BY_ZERO | {"norm-at-zero", "sqrt-at-zero", "std-singular"}

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self._met = ""

    @property
    def words(self) -> str:
        return f"use a larger eps: `eps={format_plain(self._for(self._met))}`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        self._met = name
        given, call = take_argument(args, kwargs, _POSITION_OF_EPS[name], "eps")
        if given is None:
            return func(*args, **{**kwargs, "eps": self._for(name)})
        return call(func, max(given, self._for(name)))

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        eps, text = (
            site.operand(_POSITION_OF_EPS[site.name], "eps"),
            format_plain(self._for(site.name)),
        )
        if eps is not None:
            return [(eps, text)]
        call = source.of(site.node)[:-1].rstrip(", ")
        return [(site.node, f"{call}{'' if call.endswith('(') else ', '}eps={text})")]

    def _for(self, name: str) -> float:
        return max(self.eps, 1e-5) if name.endswith("_norm") else self.eps


class LogitEdit(EpsEdit):
    """Clamps to [eps, 1 - eps]."""

    names = frozenset({"logit"})
    ops = names
    kinds = frozenset()

    def _for(self, name: str) -> float:
        return eps_near_one(self.origin)


_INVERTED = ("reciprocal", "__rdiv__")
_POSITION_OF_EPS = {
    "normalize": 3,
    "cosine_similarity": 3,
    "layer_norm": 4,
    "group_norm": 4,
    "instance_norm": 7,
    "rms_norm": 3,
    "logit": 1,
}


def _denominator(origin: Origin) -> Operand | None:
    if origin.op in _INVERTED:
        return origin.inputs[0] if origin.inputs else None
    if origin.op in DivisionEdit.ops and len(origin.inputs) > 1:
        return origin.inputs[1]
    return None
