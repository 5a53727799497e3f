from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.checks.checkpoint_tensors import looks_like_mask
from headway.checks.symptoms import NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Place, say_list
from headway.core.findings import Finding, Severity
from headway.core.numbers import say_nonfinite
from headway.core.records import TensorRecord

MENTIONED = 5
"""Maximum number of samples or features in the message; the evidence lists more."""
LOADED = (
    "Inspect these samples in the data set and fix or remove them: a missing value, "
    "a division by a zero standard deviation, a logarithm of 0."
)
COMPUTED = (
    "Check what is computed from the batch before the model: a division by a zero standard "
    "deviation or norm, a logarithm of 0."
)


class NonfiniteInput(Check):
    """The batch contains NaN or Inf.

    ## What it checks
    Every floating-point tensor of the batch: inputs and targets.

    ## Why it matters
    One bad value in one sample makes the loss of the whole batch non-finite, and through it every
    gradient. It recurs each time that sample is drawn, so skipping steps only hides it.

    ## How it is measured
    Elements that are NaN or infinite are counted; if the source knows the samples and the features
    that contain them, they are named. In `headway check`, also what a model or a loss receives: if
    the batch of the loader is finite, the values come from what is computed in between.

    ## False alarms
    An additive attention mask, of zeros and infinities alone, passes. Targets with NaN for
    "unknown" are fine if the loss excludes them before it computes anything; a NaN multiplied by a
    weight of zero is still NaN.

    ## What to do
    Inspect the named samples in the data set: empty files, missing table cells, a division by a
    zero standard deviation in the normalisation, a logarithm of 0. Fix or remove them there.
    Replacing NaN by 0 in the training loop hides a fault of the data.

    ## References
    Stack Overflow 53640858; `torch.nan_to_num` (what it replaces, and by what).
    """

    code = "HD501"
    name = "nonfinite-input"
    severity = Severity.ERROR
    summary = "the batch contains NaN or Inf"
    needs = Needs(kinds=(TensorRecord,), roles=("input",))
    explains = (*NONFINITE_OR_RANK, "HD103", "HD207", "HD313", "HD414")

    def observe(self, record: TensorRecord) -> Iterable[Finding]:
        if record.role != "input" or not record.nonfinite or looks_like_mask(record):
            return
        nan, inf = (int(record.stats.get(kind, 0)) for kind in ("nan", "inf"))
        facts = record.facts
        rows, features, indices = (
            list(facts.get(kind) or ()) for kind in ("rows", "features", "indices")
        )
        computed: dict[str, Any] = {"batch_is_finite": True} if facts.get("batch_is_finite") else {}
        yield self.find(
            record,
            _describe(record.name, say_nonfinite(nan, inf), facts),
            subject=record.name,
            where=Place.read(record.facts.get("place")).where(
                sample=rows[0] if rows else None, rank=record.rank
            ),
            remedies=[COMPUTED if computed else LOADED],
            tensor=record.name,
            nan=nan,
            inf=inf,
            rows=rows[:LISTED],
            bad_rows=facts.get("bad_rows", len(rows)),
            features=features[:LISTED],
            indices=indices[:LISTED],
            **computed,
        )


def _describe(name: str, what: str, facts: Mapping[str, Any]) -> str:
    """Named by its index in the data set where that is known, otherwise by its row."""
    rows, bad_rows = facts.get("rows") or (), facts.get("bad_rows")
    features = _list_positions("at feature", facts.get("features") or (), facts.get("bad_features"))
    if indices := facts.get("indices"):
        samples = _list_positions("data-set sample", indices, bad_rows).removeprefix(", ")
        verb = "contain" if len(_padded(indices, bad_rows)) > 1 else "contains"
        return f"{samples} {verb} {what}{features} ({name}{_list_positions('row', rows, bad_rows)})"
    if facts.get("batch_is_finite"):
        positions = _list_positions("in row", rows, bad_rows)
        return f"{name} contains {what}{positions}; the batch from the DataLoader is finite"
    positions = _list_positions("in sample", rows, bad_rows)
    return f"input {name} contains {what}{positions}{features}"


def _list_positions(place: str, items: Sequence[Any], count: int | None) -> str:
    """`, in samples 3, 17 and 5 more`: the source may list only the first of them."""
    if not items:
        return ""
    padded = _padded(items, count)
    return f", {place}{'s' if len(padded) > 1 else ''} {say_list(padded, MENTIONED)}"


def _padded(items: Sequence[Any], count: int | None) -> list[Any]:
    return [*items, *[None] * max((count or 0) - len(items), 0)]
