from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.checkpoint_tensors import CHECKPOINT, Saved, Succession
from headway.core.findings import Finding, Where
from headway.core.records import EventRecord, Header, TensorRecord, record_at


class UnchangedCheckpoint(Check):
    """Two checkpoints of a run hold the same weights.

    ## What it checks
    Checkpoints of one run one after the other: whether anything moved between them.

    ## Why it matters
    The run took steps and learned nothing: a rate of 0, an optimizer that holds other tensors than
    the model, every step skipped, or the same file saved again under another name.

    ## How it is measured
    The bytes of every weight, by a digest of 64 bits or more. The later checkpoint must say a
    higher step, and have the same weights by name, shape and dtype. Buffers and moments may differ.

    ## False alarms
    Files that tell no step are not compared: a final model often is the last checkpoint once more.
    Weights that hold NaN cannot move; HD701 tells of them.

    ## What to do
    Look at the learning rate and at skipped steps between the two; compare `id(parameter)` in the
    model and in the optimizer.

    ## References
    huggingface/accelerate#3256.
    """

    code = "HD705"
    name = "unchanged-checkpoint"
    summary = "two checkpoints of a run hold the same weights"
    needs = Needs(
        kinds=(TensorRecord, EventRecord),
        roles=("weight", "moment"),
        events=(CHECKPOINT,),
        checkpoints=2,
        decisive=("weight",),
    )
    explains = ("HD105", "HD404")

    def start(self) -> None:
        self.saved = Succession()

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

    def _compare(self, now: Saved, before: Saved) -> Iterable[Finding]:
        if not all(now.same(before, name) for name in now.weights):
            return
        if any(item[5] for item in now.weights.values()):
            return  # what is NaN cannot move: another finding says so
        moments = _moments_moved(now, before)
        but = "; the optimizer's moments did change" if moments else ""
        yield self.find(
            record_at(now.moment),
            f"{now.name} (step {now.step}) holds bit for bit the {len(now.weights)} weights of "
            f"{before.name} (step {before.step}): nothing was learned in between{but}",
            subject=now.path,
            where=Where(file=now.path),
            remedies=[
                "Look at the learning rate and at skipped steps between the two.",
                "Compare id(parameter) in the model and in optimizer.param_groups; see that the "
                "model that is saved is the one that trains.",
            ],
            path=now.path,
            before=before.path,
            tensor_count=len(now.weights),
            moments_changed=moments,
        )


def _moments_moved(now: Saved, before: Saved) -> bool | None:
    """None: there are none, or they cannot be compared."""
    both = [
        (item[0], before.moments[name][0])
        for name, item in now.moments.items()
        if name in before.moments
    ]
    return any(one != other for one, other in both) if both else None
