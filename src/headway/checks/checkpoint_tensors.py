"""Tensors of a checkpoint: what their names say, which infinities are masks, and what is kept to
compare two checkpoints.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.core.facts import Facts
from headway.core.records import EventRecord, Moment, TensorRecord
from headway.core.state import remember

# Infinities that somebody meant to be there.


def looks_like_mask(record: TensorRecord) -> bool:
    """Whether a tensor's infinities are those of an additive attention mask (0 and -Inf).

    Such a tensor holds no NaN, and it is called a mask or all its finite elements are 0.
    """
    infinite, elements = record.stats.get("inf", 0), record.stats.get("numel", 0)
    if not infinite or record.stats.get("nan", 0):
        return False
    return "mask" in record.name.lower() or (
        infinite < elements and record.stats.get("norm") == 0.0
    )


# What the names of saved tensors tell, and what is kept of a checkpoint to compare it by.

# A checkpoint is an event `checkpoint` and the records of its tensors. Checks that compare two of
# them keep a `SavedCheckpoint` of each: digests and norms, never the tensors.

CHECKPOINT = "checkpoint"
"""The kind of event a checkpoint begins with."""
JUDGED = ("weight", "buffer", "moment")
"""The roles a state consists of; a best score so far, saved beside it, may be infinite."""
MOST_TENSORS = 200_000
"""A checkpoint with more is compared as far as this."""

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
"""A rank's share of many weights laid end to end: its moments are nobody's own."""
_STEP_COUNT = re.compile(r"(^|[._/\]])step$")


def short_name(path: str) -> str:
    """The last part of a path; with its folder where that tells the step (`step_20/state.pt`)."""
    parts = path.replace("\\", "/").rstrip("/").split("/")
    told = len(parts) > 1 and _NUMBERS.search(parts[-2]) and not _NUMBERS.search(parts[-1])
    return "/".join(parts[-2:]) if told else parts[-1] or path


def layer_kind(name: str) -> str:
    """The name with its numbers taken out: the same layer of all blocks is one kind."""
    return _NUMBERS.sub("*", name)


def is_statistic(name: str) -> bool:
    """Whether it is what a norm layer keeps of its batches."""
    return bool(_STATISTICS.search(name))


def is_embedding(name: str) -> bool:
    """Whether it is a table of vectors, whose rows differ as they like."""
    return bool(_EMBEDDING.search(name))


def is_position(name: str) -> bool:
    """Whether it holds positions, frequencies or ids: as large as the sequence is long."""
    return bool(_POSITIONS.search(name))


def is_follower(name: str) -> bool:
    """Whether it is moved by hand after another weight: an EMA, a teacher, a target network."""
    return bool(_FOLLOWER.search(name))


def is_step_count(name: str) -> bool:
    """Whether it is the optimizer's own count of its steps."""
    return bool(_STEP_COUNT.search(name))


def is_first_moment(name: str) -> bool:
    """Whether it is the one moment every parameter of such an optimizer has."""
    return name.endswith(_FIRST_MOMENT)


def has_unintended_nonfinite(record: TensorRecord) -> bool:
    """Whether a saved tensor holds a NaN or an infinity that nobody meant to be there."""
    if record.role not in JUDGED or not count_elements(record, "nan") + count_elements(
        record, "inf"
    ):
        return False
    if record.role == "moment" or count_elements(record, "nan"):
        return True
    # Observers start their minimum at +Inf; a mask is 0 and -Inf.
    return not looks_like_mask(record) and (record.role != "buffer" or is_statistic(record.name))


def count_elements(record: TensorRecord, what: str) -> int:
    """How many elements of a tensor are so; 0 where nobody counted."""
    value = record.stats.get(what, 0)
    return int(value) if math.isfinite(value) else 0


@remember
@dataclass
class SavedCheckpoint:
    """One checkpoint, as far as another is compared with it."""

    path: str = ""
    step: int | None = None
    """None where the checkpoint does not tell it."""
    moment: Moment = (0, 0, 0, 0)
    weights: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Name → (digest, norm, shape, dtype, elements, elements that are not finite)."""
    moments: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The first moments, in order: the same."""
    count: float | None = None
    """The optimizer's own count of its steps."""
    ties: set[str] = field(default_factory=set)
    """Names that stand for another weight's tensor."""
    tied: bool = False
    """Whether a configuration beside it asks for a tied head."""

    @classmethod
    def of(cls, event: EventRecord) -> SavedCheckpoint:
        """An empty one, as the event announces it."""
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
        """One more of its tensors."""
        if len(self.weights) + len(self.moments) >= MOST_TENSORS:
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
        """The end of its path, for a sentence."""
        return short_name(self.path)

    @property
    def run(self) -> str:
        """The folder it lies in, whatever the step in its name: those of one run share it."""
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
        """Whether a weight is bit for bit what it was; None where that is not known."""
        now, then = self.weights.get(name), before.weights.get(name)
        if now is None or then is None or not now[0] or not then[0]:
            return None
        return bool(now[0] == then[0]) if now[2:] == then[2:] else None

    def trained_by(self) -> dict[str, str | None]:
        """Weight → its moment's name, None for a weight without one. Weights of which it cannot be
        told are left out.

        An optimizer's state has numbers for names. A moment has the shape of its weight: if in one
        way only the moments can be laid along the weights in their order, that is the one. Else
        where there are as many moments of a shape as weights, each weight has one; where there are
        none, none has.
        """
        if not self.moments or any(_PARTITION.match(name) for name in self.moments):
            return {}
        named = {weight: name for name in self.moments if (weight := self._owner(name)) is not None}
        if len(named) == len(self.moments):
            shared = {self.weights[weight][0] for weight in named}
            return {
                weight: named.get(weight)
                for weight, item in self.weights.items()
                # A tied weight was saved twice, and has its moment under the other name.
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
        """Weight → moment, where the order and the shapes of both leave one way; else nothing."""
        shapes = [(weight, item[2]) for weight, item in self.weights.items()]
        wanted = [(name, item[2]) for name, item in self.moments.items()]
        first = _match_in_order(shapes, wanted)
        last = _match_in_order(shapes[::-1], wanted[::-1])
        return first if first == last else {}

    def _owner(self, moment: str) -> str | None:
        """The weight whose name a moment bears (`optim.state.fc.weight.exp_avg`)."""
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
    """Each moment at the first weight of its shape that is left; nothing where one finds none."""
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


# The checkpoints of a run one after the other, for checks that compare two of them.


@remember
class CheckpointSequence:
    """The checkpoint that is being told, and the one before it."""

    __slots__ = ("before", "now")

    def __init__(self) -> None:
        self.before: SavedCheckpoint | None = None
        self.now: SavedCheckpoint | None = None

    def announce(self, event: EventRecord) -> None:
        """Another one begins."""
        self.now = SavedCheckpoint.of(event)

    def add(self, record: TensorRecord) -> None:
        """One of its tensors, or one of the running training, which is no concern of ours."""
        if self.now is not None:
            self.now.add(record)

    def pair(self) -> tuple[SavedCheckpoint, SavedCheckpoint] | None:
        """What is told whole by now and the one before, if both are of one model; only once."""
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
