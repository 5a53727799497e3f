from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity
from headway.core.numbers import plural
from headway.core.optimizer_facts import MissedClipFacts
from headway.core.records import SetupRecord


class ClipMissesOptimizer(Check):
    """Gradient clipping has no effect on the update: wrong parameters, or too early or late.

    ## What it checks
    Every call of `clip_grad_norm_`: which parameters it gets, which optimizer steps before the next
    backward pass, and whether a backward pass came between the last step and the clip.

    ## Why it matters
    The update is not clipped at all. The clipped gradients are cleared or replaced before their own
    optimizer steps, so training looks protected and is not.

    ## How it is measured
    Two clips of one line, after each of which an optimizer stepped that holds none of the clipped
    parameters, and then a new backward pass began; or two clips of one line between a step and the
    next backward pass, whose gradients are 0 or None when that pass begins. If one clip of that
    line was used by its optimizer, nothing is reported.

    ## False alarms
    Several clips before several steps, clips of micro-batches without a step, and clips of 16-bit
    parameters whose optimizer holds copies in full precision are not reported. Nor are gradients
    that the script assigns itself, or that are kept from one step to the next.

    ## What to do
    Pass the parameters of the optimizer that steps next, and clip after `backward()` and before
    `step()`.

    ## References
    google-deepmind/open_spiel#827, jongwook/onsets-and-frames#24, Cranial-XIX/FAMO#4.
    """

    code = "HD416"
    name = "clip-misses-optimizer"
    severity = Severity.ERROR
    summary = "gradient clipping has no effect on the update"
    needs = Needs(kinds=(SetupRecord,), topics=("missed-clip",))
    explains = ("HD202", "HD207", "HD308", "HD103")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = MissedClipFacts.of(record)
        count = facts.clipped_count
        if not facts.times:
            return
        if facts.nothing:
            yield self._nothing(record, facts)
        if not count:
            return
        clipped, stepped = say_list(facts.clipped, 2), say_list(facts.stepped, 2)
        if facts.when:
            yield self._out_of_place(record, facts, clipped)
            return
        yield self.find(
            record,
            f"clip_grad_norm_ gets {plural(count, 'parameter')} ({clipped}), but the next step "
            f"moves others ({stepped}): that update is not clipped",
            subject=clipped,
            where=facts.locate(rank=record.rank, op="clip_grad_norm_"),
            remedies=["Pass the parameters of the optimizer that steps next to the clipping."],
            optimizer=facts.optimizer,
            clipped=facts.clipped,
            stepped=facts.stepped,
            held_by_another_optimizer=facts.other_optimizer,
            times=facts.times,
        )

    def _nothing(self, record: SetupRecord, facts: MissedClipFacts) -> Finding:
        return self.find(
            record,
            "clip_grad_norm_ gets no parameters, so nothing is clipped: a generator or a filter "
            "can be read only once, and the optimizer has read it",
            subject="nothing",
            where=facts.locate(rank=record.rank, op="clip_grad_norm_"),
            remedies=["Keep a list: `list(model.parameters())`."],
            times=facts.times,
        )

    def _out_of_place(self, record: SetupRecord, facts: MissedClipFacts, clipped: str) -> Finding:
        return self.find(
            record,
            f"clip_grad_norm_ is called {facts.when}: the gradients of its {facts.clipped_count} "
            f"parameters ({clipped}) are cleared before a step uses them, so no update is clipped",
            subject=clipped,
            where=facts.locate(rank=record.rank, op="clip_grad_norm_"),
            remedies=["Move this line between backward() and step()."],
            clipped=facts.clipped,
            times=facts.times,
            when=facts.when,
        )
