"""Follows loops that make their own data, and captures how each iteration began.

A turn of such a loop begins, as far as can be told from outside, where the optimizer's last step
ended: there the random numbers and what else moves on are kept. Whether the turn really began like
that (the loop may have drawn something in between) shows when it is run again: see `turn_body.py`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from headway.output.notices import logger
from headway.rerun.strategies import iteration_state, loop_body, loop_source
from headway.rerun.strategies import loop_body as loop_variable
from headway.rerun.strategies.iteration_state import IterationState, MovingState
from headway.rerun.strategies.loop_source import NO_LOOP, LoopSource, NoLoop

if TYPE_CHECKING:
    from headway.rerun.batch_identity import RecordedBatch

MAX_STEP_LINES = 64
"""Places that steps are made at; a script that makes code as it goes has more and more."""
FIRST_ITERATION = "it was the first of its loop, and how it began was not known yet"
OVER_BATCHES = NoLoop("")
"""The loop is over batches that are handed out: another way leads back there."""


@dataclass(slots=True)
class LoopIteration:
    """A step, as one turn of its loop."""

    loop: LoopSource
    begin: IterationState
    end: IterationState | None = None
    """Where the optimizer's step ended."""


class LoopFollower:
    """Follows a training whose steps come without a batch."""

    def __init__(self, latest: Callable[[], RecordedBatch | None]) -> None:
        """`latest` tells the last batch that somebody handed out."""
        self._latest = latest
        self._known: dict[tuple[CodeType, int], LoopSource | NoLoop] = {}
        self._loop: LoopSource | None = None
        self._moving = MovingState()
        self._looked_through = 0
        self._last: IterationState | None = None
        """Where the last step ended, and in which loop."""
        self._last_loop: LoopSource | None = None
        self._batch_came = False
        self._given_up = False
        self._without = False
        """Whether a step was made that no batch had been handed out for."""
        self.present: LoopIteration | None = None
        """The step that is being made, or was made last; None: how it began is not known."""
        self.obstacle = ""
        """Why that is not known; empty: it has its batch."""

    def batch_came(self) -> None:
        """Somebody has handed a batch to a loop: this one, or another in between."""
        self._batch_came = True

    def step_begins(self) -> None:
        """The first optimizer is about to make a new step: its turn has begun before."""
        self._without = self._without or not self._batch_came
        self._batch_came = False
        self.present = None
        if self._last is not None and self._last_loop is not None:
            self.present = LoopIteration(self._last_loop, self._last)
        self.obstacle = FIRST_ITERATION if self._without else ""

    def step_ended(self, frame: FrameType | None) -> None:
        """An optimizer has stepped, or was held back; called by this frame."""
        self._last = None
        if self._given_up:
            self.present = None
            return
        try:
            self._follow(frame)
        except Exception:  # ours, or an object that cannot be looked at: the guard goes on
            if os.environ.get("HEADWAY_STRICT") == "1":
                raise
            logger.debug("the loop cannot be followed", exc_info=True)
            self._given_up, self._last, self.present = True, None, None
            self.obstacle = NO_LOOP

    def _follow(self, frame: FrameType | None) -> None:
        found = self._find(frame)
        if isinstance(found, NoLoop):
            self.present = None
            self.obstacle = found.obstacle if self._without else ""
            return
        loop, inside = found
        if id(inside) != self._looked_through or not self._moving.is_of(inside):
            self._moving = iteration_state.find_moving_state(loop, inside)
            self._looked_through = id(inside)
        self._last, self._last_loop = IterationState(loop, inside, self._moving), loop
        if self.present is not None and self.present.loop.same_loop(loop):
            self.present.loop, self.present.end, self.obstacle = loop, self._last, ""
        else:
            self.present = None

    def forget(self) -> None:
        """Nobody will ask any more."""
        self._last = self.present = None

    def _find(self, frame: FrameType | None) -> tuple[LoopSource, FrameType] | NoLoop:
        inside = None if self._loop is None else loop_source.frame_of(self._loop, frame)
        if self._loop is not None and inside is not None:
            return self._loop, inside
        found = self._look_up(frame)
        if isinstance(found, NoLoop):
            return found
        inside = loop_source.frame_of(found, frame)
        if inside is None:
            return NoLoop(NO_LOOP)
        self._loop = found
        return found, inside

    def _look_up(self, frame: FrameType | None) -> LoopSource | NoLoop:
        users = next(loop_body.user_frames(frame, loop_source.MAX_FRAMES), None)
        if users is None:
            return NoLoop(NO_LOOP)
        key = (users.f_code, users.f_lineno)
        found = self._known.get(key)
        if found is None:
            found = loop_source.find_loop(frame)
            if isinstance(found, LoopSource) and found.obstacle:
                found = NoLoop(found.obstacle)
            elif isinstance(found, LoopSource) and self._over_batches(found, frame):
                found = OVER_BATCHES
            if len(self._known) < MAX_STEP_LINES:
                self._known[key] = found
        return found

    def _over_batches(self, loop: LoopSource, frame: FrameType | None) -> bool:
        latest, inside = self._latest(), loop_source.frame_of(loop, frame)
        if latest is None or inside is None or not isinstance(loop.node, ast.For):
            return False
        variables = iteration_state.read_variables(inside, loop.targets)
        return loop_variable.match_loop_variable(loop.node, variables, latest.batch) is not None
