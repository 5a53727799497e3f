"""What becomes of the answer to why a step went bad."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.incident import INCIDENT
from headway.core.numbers import encode_numbers
from headway.live.incident import Incident
from headway.live.notices import Notices, logger
from headway.policy import Policy
from headway.replay import words
from headway.replay.explanation import Explanation, Trial
from headway.replay.scene import Scene

if TYPE_CHECKING:
    from headway.live.session import Session
    from headway.replay.investigation import Findings

LOOP_KEY = "loop-over-guard"
LOOP_OVER_GUARD = (
    "To have the line named next time, loop over guard(…): over what gives the batches, as in "
    "guard(loader), or over guard(range(n)) where the loop makes them itself."
)


@dataclass(slots=True)
class Cure:
    """A remedy that the guard has applied; `undo()` takes it back."""

    step: int
    key: str
    text: str
    undo: Callable[[], None]


class Conclusions:
    """The answers of one guard: told, written down, acted upon."""

    def __init__(self, session: Session, policy: Policy, notices: Notices) -> None:
        self._session = session
        self._policy = policy
        self._notices = notices
        self.found: list[Explanation] = []
        self.cures: list[Cure] = []
        self.captured = False
        """Whether the incident is of another run, which has the answer already."""

    def draw(self, incident: Incident, found: Findings, scene: Scene) -> None:
        """Tell what was found out, write it down, and apply a cure where that is wished."""
        explanation = found.explanation
        self.found.append(explanation)
        if self.captured:
            return
        self._session.recorder.event(incident.step, INCIDENT, encode_numbers(explanation.to_dict()))
        if self._session.survival.together.rank == 0:
            logger.warning("headway: step %s: why: %s", incident.step, explanation.summary)
        self._write_down(incident, explanation)
        if self._policy.cure == "apply":
            self._apply(incident, found, scene)

    def unexplained(self, step: int, why: str) -> None:
        """Tell that a bad step could not be run again, and what would help."""
        if self.captured:
            return
        note = f"the step could not be run again, so its line is not known: {why}"
        help_ = Trial(LOOP_KEY, LOOP_OVER_GUARD)
        told = Explanation(step, "nonfinite", "unknown", notes=(note,), trials=(help_,))
        explanation = words.told(told)
        self._session.recorder.event(step, INCIDENT, encode_numbers(explanation.to_dict()))
        if self._session.survival.together.rank == 0:
            said = f"{explanation.headline} {LOOP_OVER_GUARD}"
            logger.warning("headway: step %s: %s", step, said)

    def _write_down(self, incident: Incident, explanation: Explanation) -> None:
        """The incident into the run directory, where it was born."""
        if incident.before is None:
            return
        writer, ranks = self._session.recorder.writer, self._session.ranks
        mine = ranks is None or ranks.rank == (explanation.rank or 0)
        if writer is None or writer.broken or not mine:
            return
        capsule = importlib.import_module("headway.replay.capsule")
        survival = self._session.survival
        try:
            with ExitStack() as as_given:
                for kept in incident.batches:
                    as_given.enter_context(kept.as_given())
                folder = capsule.write(
                    writer.path,
                    explanation,
                    batches=[kept.batch for kept in incident.batches],
                    rng=incident.before.to_state(),
                    state=None if survival.holdings.sharded else survival.holdings.capture(),
                    capture=self._policy.capture,
                    rank=0 if ranks is None else ranks.rank,
                    limit=incident.limit,
                )
        except (OSError, RuntimeError) as error:
            said = getattr(error, "strerror", None) or str(error).splitlines()[0]
            self._notices.once("incident-disk", f"cannot write the incident down: {said}")
            return
        next_ = "next: headway replay" if incident.batches else "written down:"
        logger.warning("headway: step %s: %s %s", incident.step, next_, folder)

    def _apply(self, incident: Incident, found: Findings, scene: Scene) -> None:
        for remedy in found.cured:
            if remedy.keepable and not any(cure.text == remedy.text for cure in self.cures):
                undo = remedy.keep(scene)
                self.cures.append(Cure(incident.step, remedy.key, remedy.text, undo))
                self._session.recorder.event(
                    incident.step, "cure", {"key": remedy.key, "text": remedy.text}
                )
                logger.warning("headway: step %s: applied: %s", incident.step, remedy.text)
                return
