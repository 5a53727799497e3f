"""What a call edit is: one kind of call, made safe by changing its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from headway.explain.explanation import Origin
from headway.explain.remedies.float32 import dtypes_of, involves_float16
from headway.torch_adapters.source import Replacement, Statement, StatementCall

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class CallEdit(ABC):
    """Changes calls while the step runs, and says how the user would write the same."""

    names: frozenset[str]
    """The functions of torch that it changes."""
    ops: ClassVar[frozenset[str]] = frozenset()
    """The ops whose births it is for, whatever their kind."""
    kinds: ClassVar[frozenset[str]] = frozenset()
    """The kinds of birth it is for, whatever the op."""
    anywhere: ClassVar[bool] = False
    """It changes calls at every line."""
    small: ClassVar[float] = 1e-12
    small_in_float16: ClassVar[float] = 1e-4
    """What to add, or to stay above. It must not be 0 in the dtype at hand, as 1e-8 is in float16,
    and what comes of it must neither overflow nor make huge gradients."""

    def __init__(self, birth: Origin) -> None:
        self.birth = birth
        self.eps = self.small_in_float16 if involves_float16(birth) else self.small

    @property
    @abstractmethod
    def words(self) -> str:
        """What to do, where the line cannot be rewritten: goes after `At loss.py:31`."""

    @abstractmethod
    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The call, made safe."""

    def edited(self, source: Statement) -> str | None:
        """The line, made safe; None where it is not seen in it."""
        return source.rewritten(self.names, lambda site: self.rewrite(source, site))

    def rewrite(self, source: Statement, site: StatementCall) -> Sequence[Replacement] | None:
        """What to replace at one call of the line."""
        return None


class OperandEdit(CallEdit):
    """Changes the first operand: `torch.log(p)` becomes `torch.log(p.clamp_min(1e-12))`."""

    unary: ClassVar[bool] = True
    """A method of that name takes no arguments: `self.log("loss", loss)` is something else."""

    @abstractmethod
    def change(self, name: str, subject: Tensor) -> Tensor:
        """The operand, made safe."""

    @abstractmethod
    def written(self, name: str, subject: str) -> str:
        """The same as source code."""

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
    """An argument by position or name, and a way to call a function with another one for it."""
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


def eps_near_one(birth: Origin) -> float:
    """For what is compared with 1: `1 - eps` must not be 1."""
    dtypes = dtypes_of(birth)
    if "bfloat16" in dtypes:
        return 1e-2
    if "float16" in dtypes:
        return 1e-3
    return 1e-12 if dtypes == {"float64"} else 1e-6


def large_number(birth: Origin) -> float:
    """In place of infinity: so large that its exponential is, and not the largest."""
    return 6e4 if involves_float16(birth) else 1e30


def format_plain(number: float) -> str:
    """As people write it: 1e-12, 0.999999, -1e30."""
    return f"{number:.12g}".replace("e+", "e")
