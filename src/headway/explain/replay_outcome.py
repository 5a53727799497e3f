"""The result of replaying an incident: whether the step still fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.core.numbers import say
from headway.explain import explanation as wording
from headway.explain.explanation import Explanation, Origin
from headway.explain.failing_step import Outcome
from headway.explain.incident_file.incident_folder import IncidentFolder

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The result of a replay."""

    reproduces: bool | None
    """None: undecided."""
    said: str
    """What was observed, or why it is undecided."""
    outcome: Outcome
    explanation: Explanation | None = None
    """The explanation of this run, if requested."""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.reproduces is None:
            return "unclear"
        return "reproduces" if self.reproduces else "cured"


def refuse_replay(why: str) -> ReplayOutcome:
    """The result for a step that could not be run."""
    return ReplayOutcome(None, why, Outcome(error=why))


def judge_replay(
    capsule: IncidentFolder, outcome: Outcome, notes: Sequence[str] = ()
) -> ReplayOutcome:
    """Whether the step fails as it did. Without the recorded weights or limit, a success proves
    nothing."""

    def answer(reproduces: bool | None, said: str) -> ReplayOutcome:
        return ReplayOutcome(reproduces, said, outcome, notes=tuple(notes))

    if outcome.error is not None:
        return answer(None, outcome.error)
    if not outcome.complete:
        return answer(
            None,
            "the step ran without a backward pass, so there is no loss and no gradient to judge by",
        )
    if not outcome.finite:
        return answer(True, describe_nonfinite(outcome))
    if capsule.symptom == "spike" and capsule.limit is None:
        return answer(None, "the incident is a spike, and its limit was not recorded")
    if not outcome.cured(capsule.limit):
        return answer(
            True, f"the gradient norm is {say(outcome.norm)} (limit {say(capsule.limit or 0)})"
        )
    if not capsule.has_state and capsule.explanation.guilt != "batch":
        why = next((item.why for item in capsule.left_out if item.what == "the weights"), "")
        return answer(
            None,
            "the step succeeds, but with other weights: the incident does not contain them "
            f"({why})",
        )
    loss = f"loss {say(outcome.losses[-1])}, " if outcome.losses else ""
    return answer(False, f"{loss}gradient norm {say(outcome.norm)}, all values are finite")


def add_explanation(
    rehearsed: ReplayOutcome, found: Explanation, capsule: IncidentFolder
) -> ReplayOutcome:
    """Add the explanation of this replay, completed by what only the run knew: batch or weights,
    and the original rows if the batch contains the failing rows only."""
    recorded = capsule.explanation
    if not _same_origin(found.origin, recorded.origin):
        return replace(rehearsed, explanation=found)
    if capsule.rows_only:
        first = replace(found.origins[0], rows=recorded.guilty_rows)
        found = replace(found, origins=(first, *found.origins[1:]), samples=recorded.samples)
    guilt = recorded.guilt if found.guilt == "unknown" else found.guilt
    completed = wording.add_sentences(replace(found, guilt=guilt, rank=recorded.rank))
    return replace(rehearsed, explanation=completed)


def _same_origin(one: Origin | None, other: Origin | None) -> bool:
    if one is None or other is None:
        return False
    return (one.kind, one.op, one.phase) == (other.kind, other.op, other.phase)


def describe_nonfinite(outcome: Outcome) -> str:
    """The non-finite loss or gradients."""
    loss = next((value for value in outcome.losses if not math.isfinite(value)), None)
    bad = [name for name, norm in outcome.norms.items() if not math.isfinite(norm)]
    more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    names = ", ".join(bad[:MOST_NAMED]) + more
    if loss is not None:
        return f"the loss is {say(loss)}"
    return f"the loss is finite, but the gradient of {names} is not"
