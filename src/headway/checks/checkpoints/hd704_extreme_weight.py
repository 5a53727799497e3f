"""HD704: extreme weights of a checkpoint, and trained layers whose weights are all 0."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from headway.checks.checkpoint_tensors import (
    CHECKPOINT,
    SavedCheckpoint,
    count_elements,
    is_embedding,
    is_first_moment,
    is_position,
    is_statistic,
    layer_kind,
)
from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Facts
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import EventRecord, Header, TensorRecord, record_at
from headway.core.state import register_state_class

# Weights of a checkpoint whose elements are all 0, and evidence that the layer was trained. Many
# layers start at 0 on purpose: LoRA's B, the last layer of a residual branch, control convolutions,
# a new head. So 0 alone says little, unless the layer was trained: its moments are not 0, or its
# bias is spread out in a model whose batch norms have counted batches.

ENOUGH_STEPS = 10
"""Steps after which a warm-up from a learning rate of 0 has changed the weights."""
_MATRIX = re.compile(r"(^|[._/])(weight|kernel)$")
_ADAPTER = re.compile(r"lora|adapter", re.I)


@register_state_class
@dataclass
class ZeroWeights:
    """The facts of one checkpoint about weights of 0."""

    zero: dict[str, str] = field(default_factory=dict)
    """Name → file, for the matrices that are 0."""
    others: int = 0
    """Number of matrices that are not."""
    spread: set[str] = field(default_factory=set)
    """Biases whose elements differ, with none equal to 0."""
    fed: set[str] = field(default_factory=set)
    """First moments that are not 0."""
    batches: bool = False
    """Whether a batch norm has seen batches."""

    def add(self, record: TensorRecord) -> None:
        """Add a tensor."""
        low, high = record.stats.get("min", 0.0), record.stats.get("max", 0.0)
        if record.role == "moment":
            if is_first_moment(record.name) and low < high:
                self.fed.add(record.name)
        elif record.name.endswith("running_mean"):
            self.batches = self.batches or low < high
        elif record.role != "weight" or record.nonfinite:
            return
        elif len(record.shape) == 1 and record.name.endswith("bias"):
            if low < high and not count_elements(record, "zero"):
                self.spread.add(record.name)
        elif is_matrix(record) and _is_layer(record.name):
            if (
                low == high == 0.0
                and count_elements(record, "zero") == count_elements(record, "numel") > 0
            ):
                file = record.facts.get("file")
                self.zero[record.name] = file if isinstance(file, str) else ""
            else:
                self.others += 1

    def trained(self, saved: SavedCheckpoint) -> dict[str, str]:
        """The zero weights of trained layers, with the evidence for the training."""
        found = {}
        owners = saved.trained_by() if self.zero and self.fed else {}
        steps = saved.count if saved.count is not None else saved.step
        for name in self.zero:
            if owners.get(name) in self.fed and steps is not None and steps >= ENOUGH_STEPS:
                found[name] = "but its optimizer moments are not: it was trained and later set to 0"
            elif self.batches and _MATRIX.sub(r"\1bias", name) in self.spread:
                found[name] = "but its bias is not: its output is the same for every input"
        return found

    def to_state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> ZeroWeights:
        return cls(**state)


def is_matrix(record: TensorRecord) -> bool:
    """Whether it has more than one row and more than one column."""
    return sum(size > 1 for size in record.shape) > 1


def _is_layer(name: str) -> bool:
    """Whether it is the matrix of a layer that normally does not start at 0."""
    ordinary = not (is_embedding(name) or is_position(name) or _ADAPTER.search(name))
    return bool(_MATRIX.search(name)) and ordinary


FP16_MAX = 65504.0
_HALF = ("float16", "fp16", "half", "16", "16-mixed", "16-true")


class ExtremeWeight(Check):
    """A saved weight is finite but far too large; or a whole layer is 0.

    ## What it checks
    The largest element of every weight of a checkpoint, against its peers: the same layer of the
    other blocks, or, if there are too few, the other weights with the same number of dimensions.
    And whether every element of a layer's weight is 0.

    ## Why it matters
    A weight that is a thousand times as large as all others is a flipped bit, a diverged layer or a
    broken conversion. Above 65504 it becomes Inf as soon as the model is used in fp16. A layer
    whose weight is 0 returns the same output for every input.

    ## How it is measured
    A weight is reported if it is above 100, a thousand times the median of at least three peers,
    and a hundred times the largest of them. With one or two peers: if it is a million times the
    larger one, on one side of 0 only, while the other side of the same matrix is like its peers. If
    the model is meant for fp16 (by its configuration or its other weights): if it is above 65504. A
    matrix of 0 is reported if its layer was trained: its moments are not 0 after ten steps, or its
    bias is spread out in a model whose batch norms have seen batches.

    ## False alarms
    Embeddings, positions, frequencies, running statistics, step counts and moments are not checked,
    nor single numbers (a temperature, a scale). Trained language models do have a few very large
    weights; they are tens of times their peers, not thousands. Masks of -1e9 have no values on the
    other side of 0. A matrix of 0 without evidence of training is information only: new heads, last
    layers of residual branches and control convolutions start like that. LoRA is ignored.

    ## What to do
    Compare with the previous checkpoint: a single element points to a corrupt file or memory, a
    whole layer to the training. Do not cast to fp16; bf16 has the range of fp32.

    ## References
    IEEE 754 half precision; Yu et al., "The Super Weight in Large Language Models" (2024).
    """

    code = "HD704"
    name = "extreme-weight"
    summary = "a finite weight far larger than its peers, or outside the range of fp16"
    needs = Needs(
        kinds=(TensorRecord, EventRecord),
        roles=("weight", "buffer", "moment"),
        events=(CHECKPOINT,),
        checkpoints=1,
        decisive=("weight",),
    )
    explains = ("HD701", "HD301")

    @dataclass(frozen=True)
    class Limits:
        times_median: float = 1000.0
        """Multiple of the median of the peers' largest elements."""
        times_largest: float = 100.0
        """Multiple of the largest element of any peer."""
        times_few: float = 1e6
        """Multiple of the larger one, if there are only one or two peers."""
        least: float = 100.0
        """Smallest value that is extreme."""
        peers: int = 3
        """Smallest number of peers; with fewer, `times_few` applies."""

    def start(self) -> None:
        self.saved: SavedCheckpoint | None = None
        self.reported: set[str] = set()
        """Zero weights without evidence of training, reported once for all checkpoints of a run."""
        self._clear()

    def _clear(self) -> None:
        self.half = False
        self.largest: dict[str, tuple[float, int, str]] = {}
        """Name → largest element, dimensions, file."""
        self.other_end: dict[str, float] = {}
        """Name → largest absolute value of a matrix on the other side of 0."""
        self.zeroed = ZeroWeights()

    def begin(self, header: Header) -> None:
        self.saved = None
        self._clear()

    def observe(self, record: TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.saved = SavedCheckpoint.of(record)
            self.half = _asks_for_half(Facts.of(record))
            return
        if self.saved is None:
            return
        self.saved.add(record)
        self.zeroed.add(record)
        if record.role != "weight":
            return
        self.half = self.half or record.dtype == "float16"
        if record.stats.get("numel", 0) > 1 and record.nonfinite == 0 and _judged(record.name):
            largest = max(abs(record.stats.get(key, 0.0)) for key in ("min", "max"))
            if math.isfinite(largest):
                file = record.facts.get("file")
                path = file if isinstance(file, str) else ""
                self.largest[record.name] = (largest, len(record.shape), path)
                low, high = record.stats.get("min", 0.0), record.stats.get("max", 0.0)
                if is_matrix(record) and low < 0.0 < high:
                    self.other_end[record.name] = min(-low, high)

    def finish(self) -> Iterable[Finding]:
        if self.saved is not None:
            yield from self._judge(self.saved)
            yield from self._zeros(self.saved)
        self.saved = None
        self._clear()

    def _judge(self, saved: SavedCheckpoint) -> Iterable[Finding]:
        extreme: list[tuple[float, str, str]] = []
        least = FP16_MAX if self.half else math.inf
        for name, (size, _, _) in self.largest.items():
            if size <= self.limits.least:
                continue
            middle = self._middle_of_peers(name)
            if middle is not None:
                extreme.append(
                    (
                        size,
                        name,
                        f"{say(size / middle)} times the median of its peers, {say(middle)}",
                    )
                )
            elif size > least:
                extreme.append((size, name, "above 65504, the largest fp16 value"))
        if not extreme:
            return
        extreme.sort(key=lambda item: (-item[0], item[1]))
        size, name, why = extreme[0]
        more = f"; and {len(extreme) - 1} more" if len(extreme) > 1 else ""
        over = "; in fp16 it becomes Inf" if size > FP16_MAX and "fp16" not in why else ""
        yield self.find(
            record_at(saved.moment),
            f"{saved.name}: the largest element of {name} is {say(size)}, {why}{over}{more}",
            subject=saved.path,
            where=Where(file=self.largest[name][2] or saved.path, module=name),
            remedies=[
                "Compare with the previous checkpoint: a single element points to a corrupt file "
                "or memory, a whole layer to the training.",
                "Do not cast it to fp16; bf16 has the range of fp32.",
            ],
            path=saved.path,
            value=size,
            limit=self.limits.times_median,
            tensors=[item[1] for item in extreme[:LISTED]],
            tensor_count=len(extreme),
            above_fp16=sum(item[0] > FP16_MAX for item in extreme),
        )

    def _zeros(self, saved: SavedCheckpoint) -> Iterable[Finding]:
        if not self.zeroed.others:
            return  # nothing to compare with: a state before its first step, or not a model
        trained = self.zeroed.trained(saved)
        if trained:
            why = next(iter(trained.values()))
            yield self._zero(saved, list(trained), Severity.WARNING, f", {why}")
        idle = [
            name for name in self.zeroed.zero if name not in trained and name not in self.reported
        ]
        self.reported.update(idle)
        if idle:
            why = "; new heads and adapters start like this, but a trained layer does not stay at 0"
            yield self._zero(saved, idle, Severity.INFO, why)

    def _zero(
        self, saved: SavedCheckpoint, names: list[str], severity: Severity, why: str
    ) -> Finding:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return self.find(
            record_at(saved.moment),
            f"{saved.name}: every element of {names[0]}{more} is 0{why}",
            severity=severity,
            subject=f"{saved.path} zero {severity.name}",
            where=Where(file=self.zeroed.zero[names[0]] or saved.path, module=names[0]),
            remedies=[
                "Compare with the previous checkpoint, and check the tool that wrote this file."
            ],
            path=saved.path,
            value=0.0,
            tensors=names[:LISTED],
            tensor_count=len(names),
        )

    def _middle_of_peers(self, name: str) -> float | None:
        """The median of the peers' largest elements if this one is far above; otherwise None."""
        size, dimensions, _ = self.largest[name]
        kind = layer_kind(name)
        peers = [
            other
            for key, (other, _, _) in self.largest.items()
            if key != name and other > 0
            if layer_kind(key) == kind
        ]
        if len(peers) < self.limits.peers and dimensions > 1:
            peers = [
                other
                for key, (other, shape, _) in self.largest.items()
                if key != name and other > 0 and shape > 1
            ]
        if len(peers) < self.limits.peers:
            return self._larger_of_few_peers(name, peers)
        middle = median(peers)
        # Several may be broken at once: those above the limit are not used as peers.
        ordinary = [other for other in peers if other <= middle * self.limits.times_median]
        far = (
            size > middle * self.limits.times_median
            and size > max(ordinary) * self.limits.times_largest
        )
        return middle if far else None

    def _larger_of_few_peers(self, name: str, peers: list[float]) -> float | None:
        """The larger of one or two peers, if this weight is also extreme relative to itself."""
        end = self.other_end.get(name)
        if not peers or end is None:
            return None
        larger = max(peers)
        ordinary = end <= larger * self.limits.times_largest
        far = self.largest[name][0] > larger * self.limits.times_few
        return larger if far and ordinary else None


def _judged(name: str) -> bool:
    return not (is_embedding(name) or is_position(name) or is_statistic(name))


def _asks_for_half(facts: Facts) -> bool:
    settings = facts.table("settings")
    dtypes = [settings.text(key) for key in ("torch_dtype", "dtype", "precision")]
    return any(word.removeprefix("torch.").lower() in _HALF for word in dtypes if word)
