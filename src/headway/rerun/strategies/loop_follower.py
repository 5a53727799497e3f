"""Follows loops that make their own data, and captures the state in which each iteration begins.

    for step in range(steps):        while step < steps:
        x, y = get_batch(step)           step += 1
        ...                              ...
        optimizer.step()                 optimizer.step()

No loader shows when an iteration begins. The frame that called `optimizer.step()` is known, and so
are its loop, the variables that an iteration binds, and those that it passes on to the next. An
iteration is assumed to begin where the last optimizer step ended; the re-run verifies it.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from headway.output.notices import logger
from headway.rerun.strategies import iteration_state
from headway.rerun.strategies.iteration_state import IterationState, MovingState
from headway.rerun.strategies.lifted_body import read_variables
from headway.rerun.strategies.loop_body import match_loop_variable
from headway.rerun.strategies.loop_source import (
    MAX_FRAMES,
    NO_LOOP,
    LoopSource,
    NoLoop,
    find_loop,
    find_part,
)
from headway.torch_adapters.frames import current_frame, find_frame, find_user_frame

if TYPE_CHECKING:
    from headway.rerun.recorded_batch import RecordedBatch

MAX_STEP_LINES = 64
"""Maximum number of lines with an optimizer step: a script that generates code has many."""
MAX_SEARCHES = 8
"""How often in a row the objects of a function are searched again: it may get others each time."""
FIRST_ITERATION = "it was the first of its loop, and the state in which it began is not known"


OVER_BATCHES = NoLoop("")
"""The loop iterates over batches of a loader: `loop_body.py` runs those."""


@dataclass(slots=True)
class LoopIteration:
    """One iteration of a loop, with one step."""

    loop: LoopSource
    begin: IterationState
    end: IterationState | None = None
    """The state when the optimizer's step ended."""


class LoopFollower:
    """Follows a training whose steps come without a batch."""

    def __init__(self, latest: Callable[[], RecordedBatch | None]) -> None:
        """`latest` returns the last batch that was yielded."""
        self._latest = latest
        self._known: dict[tuple[CodeType, int], LoopSource | NoLoop] = {}
        self._loop: LoopSource | None = None
        self._before_batches = False
        """Whether a loop was found before the first batch was seen: it may be one over batches."""
        self._moving = MovingState()
        self._moving_loop: LoopSource | None = None
        self._searched_frame = 0
        self._searches = 0
        self._last: IterationState | None = None
        """The state when the last step ended."""
        self._last_loop: LoopSource | None = None
        self._batch_came = False
        self._failed = False
        self._own_data = False
        """Whether there was a step without a batch."""
        self.present: LoopIteration | None = None
        """The iteration of the current or last step; None: its beginning is not known."""
        self.obstacle = ""
        """Why it is not known; empty: the step has its batch."""

    def batch_came(self) -> None:
        """A batch was yielded to this loop, or to another one in between."""
        self._batch_came = True

    def step_begins(self) -> None:
        """The first optimizer is about to make a new step; its iteration has begun before."""
        self._own_data = self._own_data or not self._batch_came
        self._batch_came = False
        self.present = None
        if self._last is not None and self._last_loop is not None:
            self.present = LoopIteration(self._last_loop, self._last)
        self.obstacle = FIRST_ITERATION if self._own_data else ""

    def step_ended(self, frame: FrameType | None) -> None:
        """An optimizer has stepped, or its update was skipped; called from this frame."""
        self._last = None
        if self._failed:
            self.present = None
            return
        try:
            self._follow(frame)
        except Exception:  # ours, or an object that cannot be inspected: the guard goes on
            if os.environ.get("HEADWAY_STRICT") == "1":
                raise
            logger.debug("the loop cannot be followed", exc_info=True)
            self._failed, self._last, self.present = True, None, None
            self.obstacle = NO_LOOP

    def forget(self) -> None:
        """No step will be run again."""
        self._last = self.present = None

    def _follow(self, frame: FrameType | None) -> None:
        found = self._find(frame)
        if isinstance(found, NoLoop):
            self.present = None
            self.obstacle = found.obstacle if self._own_data else ""
            return
        loop, inside = self._search(*found, frame)
        self._last, self._last_loop = IterationState(loop, inside, self._moving), loop
        if self.present is not None and self.present.loop.same_loop(loop):
            self.present.loop, self.present.end, self.obstacle = loop, self._last, ""
        else:
            self.present = None

    def _search(
        self, loop: LoopSource, inside: FrameType, frame: FrameType | None
    ) -> tuple[LoopSource, FrameType]:
        """Search for what an iteration may change, once; without an iterator that it draws from."""
        same_frame = loop.part or id(inside) == self._searched_frame
        known = self._moving_loop is not None and self._moving_loop.same_loop(loop)
        if known and same_frame and self._moving.is_of(inside):
            self._searches = 0
            return loop, inside
        self._searches += 1
        if self._searches > MAX_SEARCHES and loop.part:
            raise LookupError("the objects of the loop are others at each step")
        moving = iteration_state.find_moving_state(loop, inside)
        if moving.iterator:
            part = find_part(frame, frozenset((moving.iterator.partition(".")[0],)))
            within = None if part is None else frame_of(part, frame)
            if part is not None and within is not None:
                loop, inside = part, within
                moving = iteration_state.find_moving_state(loop, inside)
        self._moving, self._moving_loop, self._searched_frame = moving, loop, id(inside)
        self._loop = loop
        return loop, inside

    def _find(self, frame: FrameType | None) -> tuple[LoopSource, FrameType] | NoLoop:
        if self._before_batches and self._latest() is not None:
            self._before_batches, self._loop = False, None
            self._known.clear()
        for loop in (self._loop, None):
            found = loop or self._look_up(frame)
            if isinstance(found, NoLoop):
                return found
            inside = frame_of(found, frame)
            if inside is not None:
                self._loop = found
                return found, inside
        return NoLoop(NO_LOOP)

    def _look_up(self, frame: FrameType | None) -> LoopSource | NoLoop:
        user = find_user_frame(frame, MAX_FRAMES)
        if user is None:
            return NoLoop(NO_LOOP)
        key = (user.f_code, user.f_lineno)
        found = self._known.get(key)
        if found is None:
            found = find_loop(frame)
            self._before_batches = self._before_batches or self._latest() is None
            if isinstance(found, LoopSource) and self._over_batches(found, frame):
                found = NoLoop(found.obstacle) if found.obstacle else OVER_BATCHES
            elif isinstance(found, NoLoop) or found.obstacle:
                found = find_part(frame) or NoLoop(found.obstacle)
            if len(self._known) < MAX_STEP_LINES:
                self._known[key] = found
        return found

    def _over_batches(self, loop: LoopSource, frame: FrameType | None) -> bool:
        latest, inside = self._latest(), frame_of(loop, frame)
        if latest is None or inside is None or not isinstance(loop.node, ast.For):
            return False
        variables = read_variables(inside, loop.targets)
        return match_loop_variable(loop.node, variables, latest.batch) is not None


def frame_of(loop: LoopSource, frame: FrameType | None) -> FrameType | None:
    """The frame that is in this loop, at its step; None if another step is being made."""
    inside = find_frame(loop.code, frame, MAX_FRAMES)
    return inside if inside is not None and inside.f_lineno == loop.line else None


def frame_at(code: CodeType, line: int) -> FrameType | None:
    """The frame that runs this code now, if it is at this line."""
    inside = find_frame(code, current_frame(1), sys.maxsize)
    return inside if inside is not None and inside.f_lineno == line else None
