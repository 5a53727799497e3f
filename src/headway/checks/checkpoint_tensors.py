"""Tensors of a checkpoint: what their names mean, which infinities are masks, and summaries that
compare two checkpoints.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.core.check import CHECKPOINT as CHECKPOINT
from headway.core.facts import Facts
from headway.core.records import EventRecord, Moment, TensorRecord
from headway.core.state import register_state_class


def looks_like_mask(record: TensorRecord) -> bool:
    """Whether a tensor's infinities are those of an additive attention mask (0 and -Inf).

    Such a tensor contains no NaN, and its name contains "mask" or all its finite elements are 0.
    """
    infinite, elements = record.stats.get("inf", 0), record.stats.get("numel", 0)
    if not infinite or record.stats.get("nan", 0):
        return False
    return "mask" in record.name.lower() or (
        infinite < elements and record.stats.get("norm") == 0.0
    )


# A checkpoint is an event `checkpoint` and the records of its tensors. Checks that compare two of
# them keep a `SavedCheckpoint` of each: digests and norms, never the tensors.

JUDGED = ("weight", "buffer", "moment")
"""The roles of a training state; other saved values, such as a best score, may be infinite."""
MAX_TENSORS = 200_000
"""Maximum number of tensors of a checkpoint that are compared."""

_NUMBERS = re.compile(r"\d+")
_STATISTICS = re.compile(r"(^|[._/])(running_(mean|var)|num_batches_tracked)$")
_EMBEDDING = re.compile(
    r"embed|(^|[._/])(wte|wpe|shared|codebook|prototypes?|queue|memory_bank)([._/]|$)", re.I
)
_POSITIONS = re.compile(
    r"position|rotary|inv_freq|freqs|relative|(^|[._/])(pe|pos)([._/]|$)|_ids?$|anchor|grid|scaler?$",
    re.I,
)
_FOLLOWER = re.compile(
    r"(^|[._/])(ema|teacher|target|momentum|shadow|average|avg|swa|old|frozen_copy)", re.I
)
_FIRST_MOMENT = ("exp_avg", "momentum_buffer")
_PARTITION = re.compile(r"rank\d+(\.mp\d+)?\.group\d+\.")
"""A rank's share of many flattened weights: its moments belong to no single weight."""
_STEP_COUNT = re.compile(r"(^|[._/\]])step$")


def short_name(path: str) -> str:
    """The last part of a path; with its folder if only that names the step (`step_20/state.pt`)."""
    parts = path.replace("\\", "/").rstrip("/").split("/")
    with_folder = len(parts) > 1 and _NUMBERS.search(parts[-2]) and not _NUMBERS.search(parts[-1])
    return "/".join(parts[-2:]) if with_folder else parts[-1] or path


def layer_kind(name: str) -> str:
    """The name without its numbers: the same layer of all blocks is one kind."""
    return _NUMBERS.sub("*", name)


def is_statistic(name: str) -> bool:
    """Whether it is a running statistic of a norm layer."""
    return bool(_STATISTICS.search(name))


def is_embedding(name: str) -> bool:
    """Whether it is a table of vectors, whose rows may differ by any amount."""
    return bool(_EMBEDDING.search(name))


def is_position(name: str) -> bool:
    """Whether it contains positions, frequencies or ids, which grow with the sequence length."""
    return bool(_POSITIONS.search(name))


def is_follower(name: str) -> bool:
    """Whether it follows another weight: an EMA, a teacher, a target network."""
    return bool(_FOLLOWER.search(name))


def is_step_count(name: str) -> bool:
    """Whether it is the optimizer's own count of its steps."""
    return bool(_STEP_COUNT.search(name))


def is_first_moment(name: str) -> bool:
    """Whether it is the moment that every parameter of such an optimizer has."""
    return name.endswith(_FIRST_MOMENT)


def has_unintended_nonfinite(record: TensorRecord) -> bool:
    """Whether a saved tensor contains a NaN or an unintended infinity."""
    if record.role not in JUDGED or not count_elements(record, "nan") + count_elements(
        record, "inf"
    ):
        return False
    if record.role == "moment" or count_elements(record, "nan"):
        return True
    # Observers start their minimum at +Inf; a mask is 0 and -Inf.
    return not looks_like_mask(record) and (record.role != "buffer" or is_statistic(record.name))


def count_elements(record: TensorRecord, what: str) -> int:
    """Number of such elements of a tensor; 0 if not counted."""
    value = record.stats.get(what, 0)
    return int(value) if math.isfinite(value) else 0


@register_state_class
@dataclass
class SavedCheckpoint:
    """A summary of one checkpoint, to compare it with another."""

    path: str = ""
    step: int | None = None
    """None if the checkpoint does not contain it."""
    moment: Moment = (0, 0, 0, 0)
    weights: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Name → (digest, norm, shape, dtype, elements, elements that are not finite)."""
    moments: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The first moments, in order: the same."""
    count: float | None = None
    """The optimizer's own count of its steps."""
    ties: set[str] = field(default_factory=set)
    """Names that share another weight's tensor."""
    tied: bool = False
    """Whether the configuration next to it ties the output to the embedding."""

    @classmethod
    def of(cls, event: EventRecord) -> SavedCheckpoint:
        """An empty summary of the checkpoint that the event announces."""
        facts = Facts.of(event)
        config = facts.table("settings")
        ties = facts.table("facts").table("ties")
        return cls(
            path=facts.text("path") or "the checkpoint",
            step=facts.whole("step"),
            moment=(event.segment, event.seq, event.step, event.rank),
            ties=set(ties),
            tied=config.flag("tie_word_embeddings"),
        )

    def add(self, record: TensorRecord) -> None:
        """Add a tensor."""
        if len(self.weights) + len(self.moments) >= MAX_TENSORS:
            return
        if record.role == "moment":
            self._add_moment(record)
        elif record.role == "weight" and self._counts(record.name):
            self.weights[record.name] = _fingerprint(record)

    def _counts(self, name: str) -> bool:
        return name not in self.ties and not is_statistic(name)

    def _add_moment(self, record: TensorRecord) -> None:
        if is_step_count(record.name):
            count = record.stats.get("max")
            if record.stats.get("numel", 1) == 1 and count is not None and count == count:
                self.count = max(self.count or 0.0, float(count))
        elif is_first_moment(record.name):
            self.moments[record.name] = _fingerprint(record)

    @property
    def name(self) -> str:
        """The end of its path, for messages."""
        return short_name(self.path)

    @property
    def run(self) -> str:
        """Its folder without the step: the checkpoints of one run share it."""
        folder = self.path.replace("\\", "/").rstrip("/").rpartition("/")[0]
        return re.sub(rf"(?<!\d)0*{self.step}(?!\d)", "*", folder)

    def follows(self, before: SavedCheckpoint) -> bool:
        """Whether it is the same model, saved later."""
        if self.step is None or before.step is None or self.step <= before.step:
            return False
        if self.run != before.run:
            return False
        return bool(self.weights) and self.weights.keys() == before.weights.keys()

    def same(self, before: SavedCheckpoint, name: str) -> bool | None:
        """Whether a weight is bit-identical to the earlier one; None if unknown."""
        now, then = self.weights.get(name), before.weights.get(name)
        if now is None or then is None or not now[0] or not then[0]:
            return None
        return bool(now[0] == then[0]) if now[2:] == then[2:] else None

    def trained_by(self) -> dict[str, str | None]:
        """Weight → its moment's name, None for a weight without one. Weights for which this is
        unknown are left out.

        The state of an optimizer has numbers for names. A moment has the shape of its weight: if
        order and shapes allow exactly one assignment, that one holds. Otherwise, if there are as
        many moments of a shape as weights, each weight has one; if there are none, none has.
        """
        if not self.moments or any(_PARTITION.match(name) for name in self.moments):
            return {}
        named = {weight: name for name in self.moments if (weight := self._owner(name)) is not None}
        if len(named) == len(self.moments):
            shared = {self.weights[weight][0] for weight in named}
            return {
                weight: named.get(weight)
                for weight, item in self.weights.items()
                # A tied weight is saved twice, and has its moment under the other name.
                if weight in named or item[0] not in shared
            }
        in_order = self._in_order()
        if in_order:
            return {weight: in_order.get(weight) for weight in self.weights}
        weights = Counter(item[2] for item in self.weights.values())
        moments = Counter(item[2] for item in self.moments.values())
        if any(count > weights.get(shape, 0) for shape, count in moments.items()):
            return {}  # flattened, factored or of another model
        found: dict[str, str | None] = {}
        waiting: dict[Any, list[str]] = {}
        for name, item in self.moments.items():
            waiting.setdefault(item[2], []).append(name)
        for weight, item in self.weights.items():
            if item[2] not in moments:
                found[weight] = None
            elif moments[item[2]] == weights[item[2]]:
                found[weight] = waiting[item[2]].pop(0)
        return found

    def _in_order(self) -> dict[str, str]:
        """Weight → moment, if order and shapes allow exactly one assignment; else empty."""
        shapes = [(weight, item[2]) for weight, item in self.weights.items()]
        wanted = [(name, item[2]) for name, item in self.moments.items()]
        first = _match_in_order(shapes, wanted)
        last = _match_in_order(shapes[::-1], wanted[::-1])
        return first if first == last else {}

    def _owner(self, moment: str) -> str | None:
        """The weight whose name is part of the moment's (`optim.state.fc.weight.exp_avg`)."""
        rest = re.split(r"[./]", moment)[:-1]
        for start in range(len(rest)):
            name = ".".join(rest[start:])
            if name in self.weights:
                return name
        return None

    def to_state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> SavedCheckpoint:
        return cls(**state)


def _match_in_order(
    weights: list[tuple[str, Any]], moments: list[tuple[str, Any]]
) -> dict[str, str]:
    """Each moment with the first remaining weight of its shape; empty if one has none."""
    left = iter(weights)
    found: dict[str, str] = {}
    for moment, shape in moments:
        weight = next((name for name, its in left if its == shape), None)
        if weight is None:
            return {}
        found[weight] = moment
    return found


def _fingerprint(record: TensorRecord) -> tuple[Any, ...]:
    digest = record.facts.get("digest")
    return (
        str(digest) if digest is not None else "",
        float(record.stats.get("norm", 0.0)),
        tuple(record.shape),
        record.dtype,
        count_elements(record, "numel"),
        count_elements(record, "nan") + count_elements(record, "inf"),
    )


@register_state_class
class CheckpointSequence:
    """The checkpoint being read, and the one before it."""

    __slots__ = ("before", "now")

    def __init__(self) -> None:
        self.before: SavedCheckpoint | None = None
        self.now: SavedCheckpoint | None = None

    def announce(self, event: EventRecord) -> None:
        """The next checkpoint begins."""
        self.now = SavedCheckpoint.of(event)

    def add(self, record: TensorRecord) -> None:
        """Add a tensor to the current checkpoint; ignore those of a running training."""
        if self.now is not None:
            self.now.add(record)

    def pair(self) -> tuple[SavedCheckpoint, SavedCheckpoint] | None:
        """The checkpoint just completed and the one before, if of the same model; returned once."""
        now, before = self.now, self.before
        if now is not None and now.weights:
            self.before = now
        self.now = None
        if now is None or before is None or not now.follows(before):
            return None
        return now, before

    def to_state(self) -> Any:
        return [self.before, self.now]

    @classmethod
    def from_state(cls, state: Any) -> CheckpointSequence:
        found = cls()
        found.before, found.now = state
        return found
