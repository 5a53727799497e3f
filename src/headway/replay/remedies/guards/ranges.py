"""Functions that are finite in a range only: exp, acos and their like."""

from __future__ import annotations

from torch import Tensor

from headway.replay.explanation import Birth
from headway.replay.remedies.guards.base import SubjectGuard, eps_near_one, plain
from headway.replay.remedies.precision import dtypes_of, float16_in_play


class ExpGuard(SubjectGuard):
    """Kept well below the logarithm of the largest number: what comes after needs room, too."""

    names = frozenset({"exp", "expm1", "exp2", "sinh", "cosh"})
    ops = names
    kinds = frozenset({"exp-overflow"})

    @property
    def words(self) -> str:
        return f"keep what goes into the exponential small: `{self.written('exp', 'x')}`"

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
        if float16_in_play(self.birth):
            return 10
        return 500 if dtypes_of(self.birth) == {"float64"} else 50


class UnitGuard(SubjectGuard):
    """Inverse functions: their derivative is infinite at ±1, and beyond there is nothing."""

    names = frozenset(
        {"acos", "asin", "arccos", "arcsin", "atanh", "arctanh", "erfinv", "acosh", "arccosh"}
    )
    ops = names
    kinds = frozenset({"acos-at-one"})

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._most = 1 - eps_near_one(birth)
        self._least = 1 + eps_near_one(birth)

    @property
    def words(self) -> str:
        return f"keep what goes in between -1 and 1: `{self.written('acos', 'x')}`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        if name in _ABOVE_ONE:
            return subject.clamp_min(self._least)
        return subject.clamp(-self._most, self._most)

    def written(self, name: str, subject: str) -> str:
        if name in _ABOVE_ONE:
            return f"{subject}.clamp_min({plain(self._least)})"
        return f"{subject}.clamp(-{plain(self._most)}, {plain(self._most)})"


_ABOVE_ONE = ("acosh", "arccosh")
