from __future__ import annotations

from collections.abc import Iterable

from headway.checks.checkpoint_tensors import CHECKPOINT, CheckpointSequence, SavedCheckpoint
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.records import EventRecord, Header, TensorRecord, record_at


class UnchangedCheckpoint(Check):
    """Two checkpoints of a run have the same weights.

    ## What it checks
    Consecutive checkpoints of one run: whether anything changed between them.

    ## Why it matters
    The run took steps and learned nothing: a learning rate of 0, an optimizer with other tensors
    than the model, every step skipped, or the same file saved again under another name.

    ## How it is measured
    The bytes of every weight, by a digest of 64 bits or more. The later checkpoint must have a
    higher step, and the same weights by name, shape and dtype. Buffers and moments may differ.

    ## False alarms
    Files without a step are not compared: a final model is often a copy of the last checkpoint.
    Weights with NaN cannot change; HD701 reports them.

    ## What to do
    Check the learning rate and skipped steps between the two; compare `id(parameter)` in the model
    and in the optimizer.

    ## References
    huggingface/accelerate#3256.
    """

    code = "HD705"
    name = "unchanged-checkpoint"
    summary = "two checkpoints of a run have the same weights"
    needs = Needs(
        kinds=(TensorRecord, EventRecord),
        roles=("weight", "moment"),
        events=(CHECKPOINT,),
        checkpoints=2,
        decisive=("weight",),
    )
    explains = ("HD105", "HD404")

    def start(self) -> None:
        self.saved = CheckpointSequence()

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.saved.announce(record)
        else:
            self.saved.add(record)

    def finish(self) -> Iterable[Finding]:
        pair = self.saved.pair()
        if pair is not None:
            yield from self._compare(*pair)

    def _compare(self, now: SavedCheckpoint, before: SavedCheckpoint) -> Iterable[Finding]:
        if not all(now.same(before, name) for name in now.weights):
            return
        if any(item[5] for item in now.weights.values()):
            return  # NaN cannot change: another finding reports it
        moments = _moments_moved(now, before)
        but = "; the optimizer's moments did change" if moments else ""
        yield self.find(
            record_at(now.moment),
            f"the {len(now.weights)} weights of {now.name} (step {now.step}) are bitwise equal "
            f"to those of {before.name} (step {before.step}): nothing was learned in between{but}",
            subject=now.path,
            where=Where(file=now.path),
            remedies=[
                "Check the learning rate and skipped steps between the two.",
                "Compare id(parameter) in the model and in optimizer.param_groups, and check "
                "that the saved model is the trained one.",
            ],
            path=now.path,
            before=before.path,
            tensor_count=len(now.weights),
            moments_changed=moments,
        )


def _moments_moved(now: SavedCheckpoint, before: SavedCheckpoint) -> bool | None:
    """Whether the moments changed; None if there are none, or they cannot be compared."""
    both = [
        (item[0], before.moments[name][0])
        for name, item in now.moments.items()
        if name in before.moments
    ]
    return any(one != other for one, other in both) if both else None
