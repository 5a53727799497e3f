"""Reports of bad steps that were run again or traced: explanations, incident files, remedies."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.core.incident_events import INCIDENT, TRACED
from headway.core.numbers import encode_numbers, ordinal
from headway.explain import explanation as wording
from headway.explain.explanation import Explanation, Origin, Trial
from headway.explain.incident_file.contents import running_script
from headway.output.notices import Notices, logger
from headway.policy import Policy
from headway.rerun.bad_step import BadStep, MissedStep, is_bad_input
from headway.rerun.protocol import RerunHost
from headway.rerun.recorded_batch import RecordedBatch
from headway.torch_adapters.process_groups.local_collectives import in_a_group
from headway.torch_adapters.process_groups.rank_agreement import leave_note, read_notes
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.tensor_values import scan_batch

if TYPE_CHECKING:
    from headway.explain.investigation import InvestigationPlan, InvestigationResult
    from headway.rerun.step_tracer import StepOrigins

LOOP_KEY = "loop-over-guard"
LOOP_OVER_GUARD = (
    "To get the line next time, iterate over guard(…): guard(loader), or guard(range(n)) if the "
    "loop makes its own batches."
)
MAX_TRACED_REPORTS = 16
"""Origins that are reported without running the step again."""
QUIET_STEPS = 200
"""Steps without another message about steps that cannot be run again."""
MAX_WAITS = 5
"""How often a rank waits for the explanation of another one."""
OTHER_RANK_SECONDS = 3.0
"""How long a rank waits for the origin of a bad number that another one may have sent to it."""


@dataclass(slots=True)
class AppliedRemedy:
    """A remedy that the guard has applied; `undo()` takes it back."""

    step: int
    key: str
    text: str
    undo: Callable[[], None]


class PlanResult:
    """The passes of an investigation, and its result once they are done."""

    def __init__(self, plan: InvestigationPlan) -> None:
        self._plan = plan
        self.findings: InvestigationResult | None = None

    def __iter__(self) -> Iterator[Any]:
        self.findings = yield from self._plan

    @property
    def blames_data(self) -> bool:
        """Whether the values were non-finite before they reached the model."""
        origin = None if self.findings is None else self.findings.explanation.origin
        return origin is not None and origin.kind == "poisoned-batch"


def _data_sources(batches: Sequence[RecordedBatch]) -> list[Any]:
    """Loaders of the batches, and what a framework names: one of them may know a tokenizer."""
    found = [one for kept in batches for one in (kept.loader(), *getattr(kept.run, "sources", ()))]
    return [one for one in found if one is not None]


class RerunResults:
    """Reports the explanations of one guard, writes incident files, applies remedies."""

    def __init__(self, host: RerunHost, policy: Policy, notices: Notices) -> None:
        self._host = host
        self._policy = policy
        self._notices = notices
        self._silent_until = 0
        self._waits_left = MAX_WAITS
        self.found: list[Explanation] = []
        self.cures: list[AppliedRemedy] = []
        self.traced: dict[int, StepOrigins] = {}
        """Origins of bad steps that were traced as they ran, by step."""
        self.owns_loop = True
        """Whether the user has written the loop for this guard, and can change it."""
        self.captured = False
        """Whether the step comes from another run, which has reported it already."""

    def report(self, bad: BadStep, found: InvestigationResult) -> None:
        """Report an explanation, write it to the run directory, and apply a remedy if wanted."""
        sent = not found.explanation.origins and found.explanation.nature != "deterministic"
        if sent and self.explained_elsewhere(MissedStep(bad.step), OTHER_RANK_SECONDS):
            return
        traced = self.traced.pop(bad.step, None)
        origins: Sequence[Origin] = () if traced is None else traced.origins
        made, trials = self._find_data_origin(bad, found.explanation.origin)
        if made is not None and traced is None:
            origins = (made,)
        if origins:
            explanation = wording.add_trace(found.explanation, origins, trials)
            found = replace(found, explanation=explanation)
        explanation = found.explanation
        self.found.append(explanation)
        if self.captured:
            return
        if bad.by_scaler:
            data = encode_numbers(explanation.to_dict())
            self._host.record_event(explanation.step, TRACED, data)
            return
        same = [item for item in self.found[:-1] if _same_cause(item, explanation)]
        # The first in full, repeats as a reference to it.
        why = f"as at step {same[0].step} ({ordinal(len(same) + 1)} time)" if same else ""
        self._record(explanation, "why: %s", why or explanation.summary)
        self._write_incident(bad, explanation, repeat=bool(same))
        if self._policy.cure == "apply":
            self._apply(bad, found)

    def _find_data_origin(
        self, bad: BadStep, origin: Origin | None
    ) -> tuple[Origin | None, Sequence[Trial]]:
        """The line of the data set that made a bad batch, and its remedy as it was tried."""
        if origin is None or not (is_bad_input(origin) or origin.kind == "poisoned-batch"):
            return None, ()
        if origin.batch < len(bad.batches):
            kept: RecordedBatch | None = bad.batches[origin.batch]
        else:  # a part of the loop was run again, with what its variables held
            kept = self._host.latest if bad.step == self._host.step else None
        return self._explain_batch(kept)

    def _explain_batch(self, kept: RecordedBatch | None) -> tuple[Origin | None, Sequence[Trial]]:
        if kept is None or kept.lost:
            return None, ()
        child_origin = importlib.import_module("headway.rerun.child_origin")
        began = time.perf_counter()
        made: tuple[Origin | None, Sequence[Trial]]
        made = child_origin.explain_bad_batch(kept)
        self._host.exclude_time(time.perf_counter() - began)
        return made

    def _try_on_data(self, step: int, origin: Origin) -> tuple[Trial, ...]:
        """The remedy for the line that made the latest batch bad, as it was tried."""
        if origin.through != "batch" or step != self._host.step:
            return ()
        return tuple(self._explain_batch(self._host.latest)[1])

    def report_traced(self, missed: MissedStep, traced: StepOrigins, seen_at: int) -> None:
        """Explain a bad step that was not run again; `seen_at`: the step that was traced."""
        first = traced.origins[0]
        known = [found.origin for found in self.found if found.origin is not None]
        # HD501 reports bad data once for each batch; the op that reads it adds no information.
        same = any(
            (one.op, one.place) == (first.op, first.place)
            or (one.kind == "poisoned-batch" and is_bad_input(first))
            for one in known
        )
        if self.captured or not self._policy.replay or same or len(known) >= MAX_TRACED_REPORTS:
            return
        origins = traced.origins
        if is_bad_input(first) and next(scan_batch(traced.inputs), None) is not None:
            origins = (replace(first, kind="poisoned-batch"), *origins[1:])
            self._host.inspect_batches(missed.step, [RecordedBatch(traced.inputs)])
        trials = tuple(traced.trials) or self._try_on_data(missed.step, first)
        later = (f"seen at step {seen_at}, which was bad as well",)
        explanation = wording.add_sentences(
            Explanation(
                step=missed.step,
                symptom="nonfinite",
                nature="deterministic",
                origins=origins,
                trials=trials,
                guilt=wording.guilt_by_kind(origins[0]) or "unknown",
                rank=traced.rank,
                passes=1,
                notes=later if seen_at != missed.step else (),
            )
        )
        self.found.append(explanation)
        self._record(explanation, "why: %s", explanation.summary)
        bad = BadStep(missed.step, "nonfinite", (), RngState(), None, None, missed.parameters)
        self._write_incident(bad, explanation)

    def report_missed(self, missed: MissedStep | None) -> None:
        """Report why a bad step was not run again, and what would help; rarely."""
        if missed is not None and (traced := self.traced.pop(missed.step, None)) is not None:
            self.report_traced(missed, traced, missed.step)
            return
        if missed is None or not missed.why or not self._policy.replay or self.captured:
            return
        quiet = max(self._policy.replay_gap, QUIET_STEPS)
        explained = any(missed.step - found.step < quiet for found in self.found)
        if missed.step < self._silent_until or explained:  # most likely by the same line
            return
        self._silent_until = missed.step + quiet
        note = f"the step could not be run again, so its line is unknown: {missed.why}"
        # The user of a script, or of a framework's loop, has no loop to change.
        advises = self.owns_loop and not missed.recorded
        advice = (Trial(LOOP_KEY, LOOP_OVER_GUARD),) if advises else ()
        explanation = wording.add_sentences(
            Explanation(missed.step, "nonfinite", "unknown", notes=(note,), trials=advice)
        )
        texts = (explanation.headline, *(trial.text for trial in advice))
        self._record(explanation, "%s", " ".join(texts))

    def explained_elsewhere(self, missed: MissedStep, seconds: float = 0.0) -> bool:
        """Whether another rank, whose guard does not know this one, has explained the same step;
        waits so long for it."""
        if self._host.agreement.count > 1 or not in_a_group():
            return False
        waits = min(self._waits_left, int(seconds > 0))
        self._waits_left -= waits
        notes = read_notes(f"origin/{missed.step}", seconds * waits)
        for rank, text in sorted(notes.items()):
            told = replace(Explanation.from_dict(json.loads(text)), rank=rank)
            self.found.append(told)
            self._record(told, "why: %s", told.summary)
        return bool(notes)

    def _record(self, explanation: Explanation, message: str, *values: str) -> None:
        data = encode_numbers(explanation.to_dict())
        if explanation.origin is not None and explanation.rank is None:
            leave_note(f"origin/{explanation.step}", json.dumps(data))
        self._host.record_event(explanation.step, INCIDENT, data)
        if self._host.agreement.rank == 0:
            logger.warning("headway: step %s: " + message, explanation.step, *values)

    def _write_incident(
        self, bad: BadStep, explanation: Explanation, *, repeat: bool = False
    ) -> None:
        """Write an incident file, on the rank where the bad values came from."""
        folder = self._host.run_dir
        rank = 0 if self._host.rerun_group is None else self._host.agreement.rank
        if bad.before is None or folder is None or rank != (explanation.rank or 0):
            return
        incident_folder = importlib.import_module("headway.explain.incident_file.incident_folder")
        try:
            with ExitStack() as as_given:
                for kept in bad.batches:
                    as_given.enter_context(kept.as_given())
                written = incident_folder.write_incident(
                    folder,
                    explanation,
                    batches=[kept.batch for kept in bad.batches],
                    rng=bad.before.to_state(),
                    state=self._host.capture_state(),
                    capture=self._policy.capture,
                    rank=rank,
                    limit=bad.limit,
                    sources=_data_sources(bad.batches),
                )
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            self._notices.once("incident-disk", f"cannot write the incident: {reason}")
            return
        if repeat:
            return  # the command for the first one is on the screen
        # A notebook or a shell has no script that could be run again.
        replayable = bad.batches and running_script() is not None
        next_ = "next: headway replay" if replayable else "incident written to"
        logger.warning("headway: step %s: %s %s", bad.step, next_, written)

    def _apply(self, bad: BadStep, found: InvestigationResult) -> None:
        for remedy in found.cured:
            if remedy.keepable and not any(cure.text == remedy.text for cure in self.cures):
                undo = remedy.keep(bad.as_failing_step(self._host))
                self.cures.append(AppliedRemedy(bad.step, remedy.key, remedy.text, undo))
                cure = {"key": remedy.key, "text": remedy.text}
                self._host.record_event(bad.step, "cure", cure)
                logger.warning("headway: step %s: applied: %s", bad.step, remedy.text)
                return


def _same_cause(one: Explanation, other: Explanation) -> bool:
    """Whether two bad steps have one cause: the same line and op, or the same data-set samples."""
    if one.nature != other.nature or one.guilt != other.guilt:
        return False
    if one.samples or other.samples:
        return one.samples == other.samples
    first, second = one.origin, other.origin
    if first is None or second is None:
        return False
    return (first.op, first.module, first.place) == (second.op, second.module, second.place)
