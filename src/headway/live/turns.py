"""Steps of a loop that makes its own data: how each began, should it have to be run again.

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

from headway.live import loop_body, loop_variable, turn_loop, turn_state
from headway.live.notices import logger
from headway.live.turn_body import TurnBody, Unrepeatable
from headway.live.turn_loop import NO_LOOP, NoLoop, TurnLoop
from headway.live.turn_state import Moving, TurnState

if TYPE_CHECKING:
    from headway.live.batch_identity import Kept

MOST_PLACES = 64
"""Places that steps are made at; a script that makes code as it goes has more and more."""
FIRST = "it was the first of its loop, and how it began was not known yet"
OVER_BATCHES = NoLoop("")
"""The loop is over batches that are handed out: another way leads back there."""


@dataclass(slots=True)
class Turn:
    """A step, as one turn of its loop."""

    loop: TurnLoop
    begin: TurnState
    end: TurnState | None = None
    """Where the optimizer's step ended."""


class Turns:
    """Follows a training whose steps come without a batch."""

    def __init__(self, latest: Callable[[], Kept | None]) -> None:
        """`latest` tells the last batch that somebody handed out."""
        self._latest = latest
        self._known: dict[tuple[CodeType, int], TurnLoop | NoLoop] = {}
        self._loop: TurnLoop | None = None
        self._moving = Moving()
        self._looked_through = 0
        self._last: TurnState | None = None
        """Where the last step ended, and in which loop."""
        self._last_loop: TurnLoop | None = None
        self._batch_came = False
        self._given_up = False
        self._without = False
        """Whether a step was made that no batch had been handed out for."""
        self.present: Turn | None = None
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
            self.present = Turn(self._last_loop, self._last)
        self.obstacle = FIRST if self._without else ""

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
            self._moving = turn_state.look_through(loop, inside)
            self._looked_through = id(inside)
        self._last, self._last_loop = TurnState(loop, inside, self._moving), loop
        if self.present is not None and self.present.loop.same_loop(loop):
            self.present.loop, self.present.end, self.obstacle = loop, self._last, ""
        else:
            self.present = None

    def forget(self) -> None:
        """Nobody will ask any more."""
        self._last = self.present = None

    def run_of(self, turn: Turn, frame: FrameType | None, late: bool) -> TurnBody | str:
        """A turn as something to call; a text says why it cannot be.

        `late`: the loop has gone on to its next step meanwhile.
        """
        inside = turn_loop.frame_of(turn.loop, frame)
        if turn.end is None or inside is None:
            return "its loop has gone on meanwhile"
        try:
            return TurnBody(turn.loop, turn.begin, turn.end, inside, late=late)
        except Unrepeatable as error:
            return str(error)
        except (SyntaxError, ValueError):  # legal in its place, not in a function
            return "its body cannot be taken out of its function"

    def _find(self, frame: FrameType | None) -> tuple[TurnLoop, FrameType] | NoLoop:
        inside = None if self._loop is None else turn_loop.frame_of(self._loop, frame)
        if self._loop is not None and inside is not None:
            return self._loop, inside
        found = self._look_up(frame)
        if isinstance(found, NoLoop):
            return found
        inside = turn_loop.frame_of(found, frame)
        if inside is None:
            return NoLoop(NO_LOOP)
        self._loop = found
        return found, inside

    def _look_up(self, frame: FrameType | None) -> TurnLoop | NoLoop:
        users = next(loop_body.users_frames(frame, turn_loop.FARTHEST), None)
        if users is None:
            return NoLoop(NO_LOOP)
        key = (users.f_code, users.f_lineno)
        found = self._known.get(key)
        if found is None:
            found = turn_loop.find(frame)
            if isinstance(found, TurnLoop) and found.obstacle:
                found = NoLoop(found.obstacle)
            elif isinstance(found, TurnLoop) and self._over_batches(found, frame):
                found = OVER_BATCHES
            if len(self._known) < MOST_PLACES:
                self._known[key] = found
        return found

    def _over_batches(self, loop: TurnLoop, frame: FrameType | None) -> bool:
        latest, inside = self._latest(), turn_loop.frame_of(loop, frame)
        if latest is None or inside is None or not isinstance(loop.node, ast.For):
            return False
        variables = turn_state.variables_of(inside, loop.targets)
        return loop_variable.match(loop.node, variables, latest.batch) is not None
