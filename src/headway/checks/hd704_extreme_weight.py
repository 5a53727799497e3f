from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from headway.core.check import Check, Needs
from headway.core.facts import Facts
from headway.core.findings import Finding, Severity, Where
from headway.core.moment import record_at
from headway.core.numbers import say
from headway.core.parameters import LISTED
from headway.core.records import EventRecord, Header, TensorRecord
from headway.core.saved import (
    CHECKPOINT,
    Saved,
    is_embedding,
    is_position,
    is_statistic,
    kind_of,
)
from headway.core.zeroed import Zeroed, is_matrix

FP16_MAX = 65504.0
_HALF = ("float16", "fp16", "half", "16", "16-mixed", "16-true")


class ExtremeWeight(Check):
    """A saved weight is finite, but far too large; or a whole layer is 0.

    ## What it checks
    The largest element of every weight of a checkpoint, against its peers: the same layer of the
    other blocks, or where there are too few, the other weights with as many dimensions. And whether
    a layer's weight is 0 in every element.

    ## Why it matters
    A weight that is a thousand times as large as all others is a flipped bit, a diverged layer or a
    broken conversion. Above 65504 it becomes Inf as soon as the model is used in fp16. A layer
    whose weight is 0 gives the same output whatever comes in.

    ## How it is measured
    Told if it is above 100, a thousand times the median of at least three peers, and a hundred
    times the largest of them. With one or two peers: if it is a million times the larger, and so on
    one side only, while the other end of the same matrix is as its peers are. Where the model is to
    be used in fp16 (its configuration says so, or its other weights are): if it is above 65504. A
    matrix of 0 is told where its layer was trained: its moments are not 0 after ten steps, or its
    bias is spread out in a model whose batch norms have seen batches.

    ## False alarms
    Embeddings, positions, frequencies, running statistics, step counts and moments are not looked
    at, nor single numbers (a temperature, a scale). Trained language models do have a few very
    large weights; they are tens of times their peers, not thousands. Masks of -1e9 have no other
    end. A matrix of 0 of which nothing says that it was trained is information only: new heads,
    last layers of residual branches and control convolutions begin so. LoRA is left out.

    ## What to do
    Compare with the checkpoint before: a single element points at the file or the memory, a whole
    layer at the training. Do not cast to fp16; bf16 has the range of fp32.

    ## References
    IEEE 754 half precision; Yu et al., "The Super Weight in Large Language Models" (2024).
    """

    code = "HD704"
    name = "extreme-weight"
    summary = "a finite weight far outside its peers, or outside what fp16 can hold"
    needs = Needs(
        kinds=(TensorRecord, EventRecord),
        roles=("weight", "buffer", "moment"),
        events=(CHECKPOINT,),
        checkpoints=1,
        decisive=("weight",),
    )

    @dataclass(frozen=True)
    class Limits:
        times_median: float = 1000.0
        """Of the peers' largest elements."""
        times_largest: float = 100.0
        """Of any peer."""
        times_few: float = 1e6
        """Of the larger, where there are one or two peers only."""
        least: float = 100.0
        """Nothing below is called extreme."""
        peers: int = 3
        """With fewer, only what is beyond doubt is told."""

    def start(self) -> None:
        self.saved: Saved | None = None
        self.told: set[str] = set()
        """Idle weights, told once for all checkpoints of a run."""
        self._clear()

    def _clear(self) -> None:
        self.half = False
        self.largest: dict[str, tuple[float, int, str]] = {}
        """Name → largest element, dimensions, file."""
        self.other_end: dict[str, float] = {}
        """Name → how far a matrix goes on the side of 0 where its largest element is not."""
        self.zeroed = Zeroed()

    def begin(self, header: Header) -> None:
        self.saved = None
        self._clear()

    def observe(self, record: TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.saved = Saved.of(record)
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
                told = file if isinstance(file, str) else ""
                self.largest[record.name] = (largest, len(record.shape), told)
                low, high = record.stats.get("min", 0.0), record.stats.get("max", 0.0)
                if is_matrix(record) and low < 0.0 < high:
                    self.other_end[record.name] = min(-low, high)

    def finish(self) -> Iterable[Finding]:
        if self.saved is not None:
            yield from self._judge(self.saved)
            yield from self._zeros(self.saved)
        self.saved = None
        self._clear()

    def _judge(self, saved: Saved) -> Iterable[Finding]:
        told: list[tuple[float, str, str]] = []
        least = FP16_MAX if self.half else math.inf
        for name, (size, _, _) in self.largest.items():
            if size <= self.limits.least:
                continue
            middle = self._middle_of_peers(name)
            if middle is not None:
                told.append((size, name, f"{say(size / middle)} times its peers' {say(middle)}"))
            elif size > least:
                told.append((size, name, "more than the 65504 that fp16 can hold"))
        if not told:
            return
        told.sort(key=lambda item: (-item[0], item[1]))
        size, name, why = told[0]
        more = f"; and {len(told) - 1} more" if len(told) > 1 else ""
        over = "; in fp16 it becomes Inf" if size > FP16_MAX and "fp16" not in why else ""
        yield self.find(
            record_at(saved.moment),
            f"{saved.name}: the largest element of {name} is {say(size)}, {why}{over}{more}",
            subject=saved.path,
            where=Where(file=self.largest[name][2] or saved.path, module=name),
            remedies=[
                "Compare with the checkpoint before it: one element points at the file or the "
                "memory, a whole layer at the training.",
                "Do not cast it to fp16; bf16 has the range of fp32.",
            ],
            path=saved.path,
            value=size,
            limit=self.limits.times_median,
            tensors=[item[1] for item in told[:LISTED]],
            tensor_count=len(told),
            above_fp16=sum(item[0] > FP16_MAX for item in told),
        )

    def _zeros(self, saved: Saved) -> Iterable[Finding]:
        if not self.zeroed.others:
            return  # nothing to compare with: a state before its first step, or no model
        trained = self.zeroed.trained(saved)
        if trained:
            why = next(iter(trained.values()))
            yield self._zero(saved, list(trained), Severity.WARNING, f", {why}")
        idle = [name for name in self.zeroed.zero if name not in trained and name not in self.told]
        self.told.update(idle)
        if idle:
            why = "; new heads and adapters begin so, and no trained layer stays so"
            yield self._zero(saved, idle, Severity.INFO, why)

    def _zero(self, saved: Saved, names: list[str], severity: Severity, why: str) -> Finding:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return self.find(
            record_at(saved.moment),
            f"{saved.name}: every element of {names[0]}{more} is 0{why}",
            severity=severity,
            subject=f"{saved.path} zero {severity.name}",
            where=Where(file=self.zeroed.zero[names[0]] or saved.path, module=names[0]),
            remedies=["Compare with the checkpoint before it, and with what made this file of it."],
            path=saved.path,
            value=0.0,
            tensors=names[:LISTED],
            tensor_count=len(names),
        )

    def _middle_of_peers(self, name: str) -> float | None:
        """The middle of the peers' largest elements, if this one is far outside; else None."""
        size, dimensions, _ = self.largest[name]
        kind = kind_of(name)
        peers = [
            other
            for key, (other, _, _) in self.largest.items()
            if key != name and other > 0
            if kind_of(key) == kind
        ]
        if len(peers) < self.limits.peers and dimensions > 1:
            peers = [
                other
                for key, (other, shape, _) in self.largest.items()
                if key != name and other > 0 and shape > 1
            ]
        if len(peers) < self.limits.peers:
            return self._of_few(name, peers)
        middle = median(peers)
        # Several may be broken at once: those above their limit are no peers to measure by.
        ordinary = [other for other in peers if other <= middle * self.limits.times_median]
        far = (
            size > middle * self.limits.times_median
            and size > max(ordinary) * self.limits.times_largest
        )
        return middle if far else None

    def _of_few(self, name: str, peers: list[float]) -> float | None:
        """The larger of one or two peers, where this one stands out against itself as well."""
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
    said = [settings.text(key) for key in ("torch_dtype", "dtype", "precision")]
    return any(word.removeprefix("torch.").lower() in _HALF for word in said if word)
