"""Where observers put what they saw.

It becomes records of the one stream that a guard writes and the checks read: facts as set-up
records, numbers as part of the step being made. What is said before there is a guard waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.engine import UNAVAILABLE
from headway.live.extras import Extras
from headway.live.launch import Launch, ScriptGuard
from headway.live.recorder import Recorder


class Evidence:
    """Facts and numbers on their way into the record."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._waiting: list[tuple[int, str, Mapping[str, Any]]] = []
        self._early = Extras()
        launch.on_recorder.append(self._recorder_came)
        launch.on_guard.append(self._guard_came)

    def tell(self, topic: str, facts: Mapping[str, Any]) -> None:
        """Facts about something seen: plain data only. A `place` (see `Scene.place`) names a line.

        Every call is one record: say what is new, not the same thing at every step.
        """
        recorder = self._launch.recorder
        if recorder is None:
            self._waiting.append((self._launch.step, topic, dict(facts)))
        else:
            recorder.setup(self._launch.step, topic, facts)

    def unavailable(self, topic: str, why: str) -> None:
        """The facts of a topic cannot be had: the checks that need them say so."""
        self.tell(topic, {UNAVAILABLE: why})

    def value(self, name: str, value: float) -> None:
        """A number of the step being made, such as `component_grad/box`."""
        self._extras.value(name, value)

    def column(self, name: str, members: Mapping[str, float]) -> None:
        """Numbers along an axis, by name: `act/zero_share`, {"encoder.relu": 0.2}."""
        self._extras.column(name, members)

    @property
    def _extras(self) -> Extras:
        guard = self._launch.guard
        extras: Extras = self._early if guard is None else guard.session.extras
        return extras

    def _recorder_came(self, recorder: Recorder) -> None:
        waiting, self._waiting = self._waiting, []
        for step, topic, facts in waiting:
            recorder.setup(step, topic, facts)

    def _guard_came(self, guard: ScriptGuard) -> None:
        values, members = self._early.values, self._early.members
        self._early = Extras()
        for name, value in values.items():
            guard.session.extras.value(name, value)
        for name, found in members.items():
            guard.session.extras.column(name, found)
