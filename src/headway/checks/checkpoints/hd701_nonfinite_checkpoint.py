from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.checks.checkpoint_tensors import (
    CHECKPOINT,
    SavedCheckpoint,
    count_elements,
    has_unintended_nonfinite,
    is_step_count,
)
from headway.core.check import Check, Needs
from headway.core.facts import LISTED
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import EventRecord, Header, TensorRecord, record_at


class NonfiniteCheckpoint(Check):
    """A saved tensor contains NaN or Inf.

    ## What it checks
    Every floating-point tensor of a checkpoint: weights, buffers and the optimizer's moments.

    ## Why it matters
    Such a checkpoint cannot be resumed, evaluated or shipped. Training does not repair it: each
    step multiplies by it. If every weight is NaN, the file contains no information any more.

    ## How it is measured
    All NaN and infinite elements are counted. One finding for each checkpoint names the worst
    tensors, the share of the weights' elements, the first bad index, and whether the moments are
    affected too. If all elements of all weights are non-finite, the checkpoint is unusable.

    ## False alarms
    Attention masks (0 and -Inf, no NaN) are ignored, and so are buffers that contain infinities on
    purpose: observers that start at +Inf, a best score so far.

    ## What to do
    Resume from the last checkpoint whose tensors are all finite: `headway scan RUN --last-good`
    prints it. Then find the step that wrote the first bad value before you train past it again.

    ## References
    PyTorch, "Automatic Mixed Precision examples"; AnswerDotAI/ModernBERT#233.
    """

    code = "HD701"
    name = "nonfinite-checkpoint"
    severity = Severity.ERROR
    summary = "NaN or Inf in a saved tensor"
    needs = Needs(
        kinds=(TensorRecord, EventRecord),
        roles=("weight", "buffer", "moment"),
        events=(CHECKPOINT,),
        checkpoints=1,
    )
    explains = ("HD301", "HD302", "HD408")

    def start(self) -> None:
        self.saved: SavedCheckpoint | None = None
        self._clear()

    def _clear(self) -> None:
        self.tensors = 0
        self.elements = 0
        """Elements of the weights; below: the non-finite ones among them."""
        self.bad_elements = 0
        self.bad: dict[str, int] = {"weight": 0, "buffer": 0, "moment": 0}
        """Tensors that contain NaN or Inf, by role."""
        self.seen: dict[str, int] = {"weight": 0, "buffer": 0, "moment": 0}
        self.worst: list[list[Any]] = []
        """[bad elements, name, nan, inf, elements, first bad index, role, file]"""

    def begin(self, header: Header) -> None:
        self.saved = None
        self._clear()

    def observe(self, record: TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.saved = SavedCheckpoint.of(record)
            return
        if self.saved is None or record.role not in self.seen or is_step_count(record.name):
            return  # a tensor of the running training, or not a relevant one
        self.seen[record.role] += 1
        size, bad = (
            count_elements(record, "numel"),
            count_elements(record, "nan") + count_elements(record, "inf"),
        )
        if record.role == "weight":
            self.elements += size
        if has_unintended_nonfinite(record):
            self._add_bad(record, size, bad)

    def finish(self) -> Iterable[Finding]:
        if self.saved is not None and self.worst:
            yield self._finding(self.saved)
        self.saved = None
        self._clear()

    def _add_bad(self, record: TensorRecord, size: int, bad: int) -> None:
        self.bad[record.role] += 1
        if record.role == "weight":
            self.bad_elements += bad
        nan, inf = count_elements(record, "nan"), count_elements(record, "inf")
        first = _index(record.facts.get("first_bad"))
        file = record.facts.get("file")
        path = file if isinstance(file, str) else None
        self.worst.append([bad, record.name, nan, inf, size, first, record.role, path])
        # Weights first: a moment may have only a number where its weight has a name.
        self.worst.sort(key=lambda item: (item[6] != "weight", -item[0], item[1]))
        del self.worst[LISTED:]

    def _finding(self, saved: SavedCheckpoint) -> Finding:
        share = self.bad_elements / self.elements if self.elements else 0.0
        dead = bool(self.elements) and self.bad_elements == self.elements
        first = self.worst[0]
        return self.find(
            record_at(saved.moment),
            self._message(saved, share, dead=dead),
            subject=saved.path,
            where=Where(file=first[7] or saved.path, module=first[1]),
            remedies=[
                "Do not resume from it: training cannot repair it. `headway scan RUN "
                "--last-good` prints the last checkpoint of a run whose tensors are all finite.",
                "Find the step that wrote it: the first non-finite loss or gradient after the "
                "last finite checkpoint.",
            ],
            path=saved.path,
            tensors=[item[1] for item in self.worst],
            tensor_count=sum(self.bad.values()),
            of=sum(self.seen.values()),
            share=share,
            nan=first[2],
            inf=first[3],
            elements=first[4],
            first_index=first[5],
            weights=self.bad["weight"],
            buffers=self.bad["buffer"],
            moments=self.bad["moment"],
            dead=dead,
        )

    def _message(self, saved: SavedCheckpoint, share: float, *, dead: bool) -> str:
        moments = self.bad["moment"]
        also = f"; {moments} of {self.seen['moment']} optimizer moments too" if moments else ""
        if dead:
            weights = self.seen["weight"]
            return (
                f"{saved.name} is unusable: every element of all {weights} weights is "
                f"non-finite{also}"
            )
        if not self.bad["weight"]:
            also = f"; all {self.seen['weight']} weights are finite" if self.seen["weight"] else ""
        listed = ", ".join(_describe_tensor(item) for item in self.worst[:3])
        count = sum(self.bad.values())
        more = f" and {count - 3} more" if count > 3 else ""
        of_all = f" ({say(100 * share)} % of all weights)" if share else ""
        return (
            f"{saved.name}: {count} of {sum(self.seen.values())} tensors contain NaN or "
            f"Inf{of_all}: {listed}{more}{also}"
        )


def _describe_tensor(item: list[Any]) -> str:
    _, name, nan, inf, size, first, _, _ = item
    parts = [f"{count} {word}" for count, word in ((nan, "NaN"), (inf, "Inf")) if count]
    at = f", first at {first}" if first not in (None, []) else ""
    return f"{name} ({' and '.join(parts)} of {size}{at})"


def _index(value: Any) -> Any:
    """An index as it is written, whatever the reader returned."""
    if isinstance(value, (list, tuple)):
        return [item for item in value if isinstance(item, int)]
    return value if isinstance(value, int) and not isinstance(value, bool) else None
