"""Edits that write a computation in another form: softplus, eigenvectors of equal eigenvalues, the
determinant of a singular matrix, masked data, a cast that does not overflow.
"""

from __future__ import annotations

import ast
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
    take_argument,
)
from headway.torch_adapters.op_schema import TASK_LOSSES
from headway.torch_adapters.source import (
    Replacement,
    Span,
    Statement,
    StatementCall,
    read_statement,
)


class GammaEdit(OperandEdit):
    """Poles at 0 and at negative integers."""

    small = 1e-6
    names = frozenset({"lgamma", "digamma"})
    ops = names

    @property
    def words(self) -> str:
        return f"keep the argument above 0: `.clamp_min({format_plain(self.eps)})`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(self.eps)

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp_min({format_plain(self.eps)})"


class EigenEdit(OperandEdit):
    """Different small numbers on the diagonal, so that no two eigenvalues are equal."""

    small = 1e-4
    names = frozenset({"eigh", "eig"})
    ops = frozenset({"linalg_eigh", "linalg_eig"})

    @property
    def words(self) -> str:
        return f"make the eigenvalues different: `{self.written('eigh', 'a')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        steps = torch.arange(subject.shape[-1], device=subject.device)
        return subject + self.eps * torch.diag(steps)

    def written(self, name: str, subject: str) -> str:
        steps = f"torch.arange({subject}.shape[-1], device={subject}.device)"
        return f"{subject} + {format_plain(self.eps)} * torch.diag({steps})"


class DeterminantEdit(OperandEdit):
    """A small number on the diagonal, so that no matrix is singular."""

    small = 1e-6
    names = frozenset({"logdet", "slogdet"})
    ops = frozenset({"logdet", "slogdet", "linalg_slogdet"})

    @property
    def words(self) -> str:
        return f"keep the matrix invertible: `{self.written('logdet', 'a')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject + subject.new_full((subject.shape[-1],), self.eps).diag()

    def written(self, name: str, subject: str) -> str:
        diagonal = f"{subject}.new_full(({subject}.shape[-1],), {format_plain(self.eps)}).diag()"
        return f"{subject} + {diagonal}"

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        found = super().rewrite(source, site)
        if found and site.method:  # a.logdet(): (a + …).logdet()
            return [(node, f"({text})") for node, text in found]
        return found


class SoftplusEdit(CallEdit):
    """`log(1 + exp(x))` overflows where its result, about x, does not."""

    names = frozenset({"exp", "log", "log1p"})
    words = "write `torch.nn.functional.softplus(x)`"

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self._exponent: Tensor | None = None

    @classmethod
    def fits(cls, origin: Origin) -> bool:
        source = None if origin.place is None else read_statement(origin.place)
        return source is not None and cls(origin).replacements(source) is not None

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take_argument(args, kwargs, 0, "input", "self")
        if name == "exp" and isinstance(subject, Tensor):
            self._exponent = subject
            return call(func, subject.clamp(max=_SAME))
        given, self._exponent = self._exponent, None
        if given is None or not isinstance(subject, Tensor) or given.shape != subject.shape:
            return func(*args, **kwargs)
        return torch.where(given > _SAME, given, func(*args, **kwargs))

    def replacements(self, source: Statement) -> list[Span] | None:
        return source.replacements({"log", "log1p"}, lambda site: self.rewrite(source, site))

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        inside = site.operand(0, "input")
        if site.name == "log":
            inside = _other_than_one(inside)
        exponent = _argument_of_exp(inside)
        if exponent is None or len(site.operands) > 1:
            return None
        return [(site.node, f"torch.nn.functional.softplus({source.of(exponent)})")]


_SAME = 20.0
"""Above this, softplus(x) is x in float32, and torch computes it so."""


def _other_than_one(node: ast.expr | None) -> ast.expr | None:
    """The other term of `1 + x`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, ast.Constant) and one.value == 1:
            return other
    return None


def _argument_of_exp(node: ast.expr | None) -> ast.expr | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr != "exp" or node.keywords:
        return None
    if not node.args:
        return node.func.value
    return node.args[0] if len(node.args) == 1 else None


class MaskedNanEdit(CallEdit):
    """NaN in the data that the loss leaves out is 0 before the op that reads it."""

    names = frozenset({"sub", "rsub", "add", "mul", "div", *TASK_LOSSES})
    kinds = frozenset({"masked-nan"})
    words = "replace NaN before it is used: `x.nan_to_num()`"

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self._at = 1
        """Position of the data among the operands."""

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        bad = [at for at, value in enumerate(args) if _is_data_with_nan(value)]
        if not bad:
            raise LookupError("no data with NaN")
        self._at = bad[0]
        finite = (arg.nan_to_num() if at in bad else arg for at, arg in enumerate(args))
        return func(*finite, **kwargs)

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        subject = site.operand(self._at, "target")
        if not isinstance(subject, (ast.Name, ast.Attribute, ast.Subscript)):
            return None
        return [(subject, f"{source.tight(subject)}.nan_to_num()")]


def _is_data_with_nan(value: Any) -> bool:
    data = isinstance(value, Tensor) and value.is_floating_point() and not value.requires_grad
    return data and bool(value.isnan().any())


class CastEdit(OperandEdit):
    """A number too large for float16 becomes the largest one."""

    names = frozenset({"half", "to", "type"})
    ops = frozenset({"to", "half", "type"})
    unary = False
    words = "clamp before the cast to float16: `x.clamp(-65504, 65504).half()`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if name != "half" and torch.float16 not in (*args[1:], kwargs.get("dtype")):
            raise LookupError("another cast")
        return super().run(name, func, args, kwargs)

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp(-_LARGEST_HALF, _LARGEST_HALF)

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp(-{_LARGEST_HALF}, {_LARGEST_HALF})"

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        given = [source.of(node) for node in (*site.operands, *site.keywords.values())]
        narrow = site.name == "half" or {"torch.float16", "torch.half"} & {*given}
        return super().rewrite(source, site) if narrow and site.method else None


_LARGEST_HALF = 65504


class HalfEdit(CallEdit):
    """Computes in float32 what overflows in float16."""

    names = frozenset({"mul", "square", "pow", "sum", "prod", "add"})
    ops = names
    words = "compute it in float32: `x.float()`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if not any(_is_half(value) for value in args):
            raise LookupError("another dtype")
        return func(*(value.float() if _is_half(value) else value for value in args), **kwargs)

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        given = site.operands if site.name in ("mul", "add") else site.operands[:1]
        given = [node for node in given if not isinstance(node, ast.Constant)]
        return [(node, f"{source.tight(node)}.float()") for node in given] or None


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.float16


class BoundEdit(CallEdit):
    """A state that grows from step to step of a recurrence is bounded before its product is taken.

    Far above usual values, and so far below the largest number that later squares are finite too.
    """

    names = frozenset({"mul", "square", "pow"})
    ops = names
    words = "bound the values before: `x.clamp(-1e6, 1e6)`"

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self._large: set[int] = set()
        """Positions of the operands with values beyond the bound."""

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        found = [at for at, value in enumerate(args) if _is_large(value)]
        if not found and not self._large:
            raise LookupError("no large value")
        self._large.update(found)
        bounded = (
            arg.clamp(-_BOUND, _BOUND) if at in found else arg for at, arg in enumerate(args)
        )
        return func(*bounded, **kwargs)

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        keywords = ("input", "exponent" if site.name == "pow" else "other")
        changed = [site.operand(at, keywords[at]) for at in sorted(self._large)]
        if not changed or any(node is None or isinstance(node, ast.Constant) for node in changed):
            return None
        nodes = [node for node in changed if node is not None]
        return [(node, f"{source.tight(node)}.clamp(-1e6, 1e6)") for node in nodes]


_BOUND = 1e6


def _is_large(value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return bool((value.detach().abs() > _BOUND).any())
