from __future__ import annotations

from collections.abc import Iterable

from headway.checks.checkpoint_tensors import CHECKPOINT, SavedCheckpoint
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.numbers import say
from headway.core.optimizer_facts import ResumeFacts
from headway.core.records import EventRecord, Header, SetupRecord, TensorRecord, record_at


class OptimizerStateLost(Check):
    """Training continues with trained weights and an optimizer without its state.

    ## What it checks
    Every optimizer at its first step: whether its weights had been trained before by an optimizer
    with the same settings, and whether the moments were restored. In the checkpoints of a run:
    whether the optimizer's own step count continues.

    ## Why it matters
    The averages of Adam and momentum take hundreds of steps to settle. Without them the first
    updates have full size in every direction: the loss jumps at each resume, and part of the
    training is lost.

    ## How it is measured
    The optimizer uses moments and has none at its first step. Its weights were changed by another
    optimizer of the same kind and settings in this process (the same tensors, or loaded from its
    result), or come from a checkpoint that contains the moments of such an optimizer, which were
    not loaded. Between two checkpoints: the later one has the higher step, but the step count in
    its optimizer state is lower.

    ## False alarms
    SGD without momentum has no state to lose. Fine-tuning with a new learning rate, another
    optimizer or other parameters is a new training, and so are weights from a file that contains
    nothing else and was written after the last step. Copies that another run continues from an
    earlier point are not reported either.

    ## What to do
    Save `optimizer.state_dict()` with the weights and load it on resume; create the optimizer once,
    not in every epoch.

    ## References
    NVIDIA-NeMo/Automodel#763.
    """

    code = "HD407"
    name = "optimizer-state-lost"
    summary = "the resume lost the optimizer state: step counts restart, the loss jumps"
    needs = Needs(
        kinds=(SetupRecord, TensorRecord, EventRecord),
        topics=("resume",),
        roles=("moment",),
        events=(CHECKPOINT,),
        checkpoints=2,
    )
    explains = ("HD103", "HD207", "HD406")

    def start(self) -> None:
        self.reported = False
        self.before: SavedCheckpoint | None = None
        self.now: SavedCheckpoint | None = None

    def begin(self, header: Header) -> None:
        self.before = self.now = None

    def observe(self, record: SetupRecord | TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.now = SavedCheckpoint.of(record)
        elif isinstance(record, TensorRecord):
            if self.now is not None:
                self.now.add(record)
        else:
            yield from self._at_resume(record)

    def finish(self) -> Iterable[Finding]:
        now, before = self.now, self.before
        if now is None or now.count is None or now.step is None:
            return
        later = before is not None and now.step > (before.step or 0) and now.run == before.run
        if before is not None and later and now.count < (before.count or 0):
            yield self._between(now, before)
        self.before = now
        self.now = None

    def _between(self, now: SavedCheckpoint, before: SavedCheckpoint) -> Finding:
        return self.find(
            record_at(now.moment),
            f"the optimizer state counts {say(before.count or 0)} steps in {before.name} but "
            f"only {say(now.count or 0)} in {now.name}: it was restarted in between, without its "
            f"moments",
            subject=now.path,
            where=Where(file=now.path),
            remedies=[
                "Load the optimizer's state with the weights when you resume: "
                "`optimizer.load_state_dict(checkpoint[…])`.",
                "Create the optimizer once, before the loop over the epochs.",
            ],
            path=now.path,
            before=before.path,
            steps_before=before.count,
            steps=now.count,
        )

    def _at_resume(self, record: SetupRecord) -> Iterable[Finding]:
        facts = ResumeFacts.of(record)
        lost = facts.fresh and facts.stateful and facts.same_settings
        if self.reported or not lost:
            return
        source = _source(facts)
        if source is None:
            return
        self.reported = True
        kind = facts.optimizer or "the optimizer"
        yield self.find(
            record,
            f"{source}, but {kind} starts without its moments: they were not restored",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Load the optimizer's state with the weights: "
                "`optimizer.load_state_dict(checkpoint[…])`, and save it with them.",
                "Create the optimizer once, before the loop over the epochs.",
            ],
            optimizer=kind,
            steps_before=facts.before_steps,
            checkpoint=facts.checkpoint,
        )


def _source(facts: ResumeFacts) -> str | None:
    steps = facts.before_steps or 0
    if steps > 0 and facts.same_objects:
        return f"these weights were trained by another optimizer for {steps} steps"
    if steps > 0 and facts.loaded:
        return f"these weights were loaded from a training of {steps} steps"
    if facts.checkpoint_moments and not facts.checkpoint_used:
        name = facts.checkpoint
        return f"these weights come from a checkpoint{f' ({name})' if name else ''} with moments"
    return None
