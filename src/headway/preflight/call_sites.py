"""Which call of a script this is: the module it was made in, the line, and how often so far.

A layer kept in a module is known by its path. A functional call is known by the module it stands
in and its line; a loop over layers makes several calls on one line, so they are numbered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from headway.preflight.scene import Scene

CLOSE_STEPS, THEN_EVERY = 5, 5
MOST_ON_A_LINE = 16
"""Calls of one line in one pass that are told apart; a loop over time steps has many more."""


def looked_at(step: int) -> bool:
    """Whether a step is measured: the first few are, then one in five."""
    return step < CLOSE_STEPS or step % THEN_EVERY == 0


@dataclass(frozen=True, slots=True)
class Site:
    """One call in the code of a model."""

    module: nn.Module | None
    """The innermost module that runs."""
    place: Mapping[str, Any] | None
    number: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same call in the next step."""
        place = self.place or {}
        line = () if self.torchs_own else (place.get("file"), place.get("line"))
        return (id(self.module), *line, self.number)

    @property
    def torchs_own(self) -> bool:
        """Whether the innermost module is one of torch's: then it is the call."""
        return type(self.module).__module__.startswith("torch.nn")

    def name(self, scene: Scene) -> str:
        """`encoder.act`, or `encoder (model.py:31)`; right only when the models are known."""
        path = "" if self.module is None else scene.path_of(self.module)
        if self.module is not None and not self.torchs_own and self.module in scene.models:
            path = ""
        if not self.torchs_own and self.place:
            line = f"{os.path.basename(str(self.place.get('file')))}:{self.place.get('line')}"
            path = f"{path} ({line})" if path else line
        return path + (f" #{self.number + 1}" if self.number else "")


class Sites:
    """Names calls, and counts those of one line since the last reset."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._seen: dict[tuple[Any, ...], int] = {}

    def here(self) -> Site | None:
        """The call that runs now; None where its line was run too often to tell calls apart."""
        stack = self._scene.stack
        site = Site(stack[-1] if stack else None, self._scene.place())
        number = self._seen.get(site.key, 0)
        self._seen[site.key] = number + 1
        if number >= MOST_ON_A_LINE:
            return None
        return Site(site.module, site.place, number) if number else site

    def restart(self) -> None:
        """A new pass begins: count from nothing."""
        self._seen.clear()
