"""log of 0 or less."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headway.replay.remedies.edits import Replacement, Site, Source
from headway.replay.remedies.guards.base import (
    Args,
    Guard,
    Kwargs,
    SubjectGuard,
    eps_near_one,
    plain,
    take,
)


class LogGuard(SubjectGuard):
    names = frozenset({"log", "log2", "log10", "log1p", "entr"})
    ops = names
    kinds = frozenset({"log-of-zero", "log-of-negative"})

    @property
    def words(self) -> str:
        return f"keep what goes into the logarithm above 0: `.clamp_min({plain(self.eps)})`"

    def change(self, name: str, subject: Tensor) -> Tensor:
        return subject.clamp_min(self._least(name))

    def written(self, name: str, subject: str) -> str:
        return f"{subject}.clamp_min({plain(self._least(name))})"

    def _least(self, name: str) -> float:
        return eps_near_one(self.birth) - 1 if name == "log1p" else self.eps


class XLogYGuard(Guard):
    """x·log(y): y is the one to keep above 0."""

    names = frozenset({"xlogy"})
    ops = names
    words = "keep the second argument of xlogy above 0, with `.clamp_min(eps)`"

    def run(self, name: str, func: Any, args: Args, kwargs: Kwargs) -> Any:
        subject, call = take(args, kwargs, 1, "other")
        if not isinstance(subject, Tensor):
            return func(*args, **kwargs)
        return call(func, subject.clamp_min(self.eps))

    def rewrite(self, source: Source, site: Site) -> list[Replacement] | None:
        subject = site.operand(1, "other")
        if subject is None:
            return None
        return [(subject, f"{source.tight(subject)}.clamp_min({plain(self.eps)})")]
