"""Records and counts batches whose update was skipped, and avoids them if the policy says so.

A batch is recognized by the same set of samples, or by the same content. Shuffling forms new
batches in every epoch, so samples are counted as well: one that was in several different bad
batches is a suspect. This is information for the user and does not affect the training.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from headway.core.codec import NO_RECORD, from_json
from headway.core.records import EventRecord
from headway.output.notices import Notices
from headway.rerun.recorded_batch import BatchIdentity, Index, RecordedBatch, freeze_index

QUARANTINE = "quarantine"
"""The kind of event that names a batch whose update was skipped."""
AVOIDED = "avoided"
"""The kind of event that reports that such a batch was left out."""

MAX_BATCHES = 10_000
MAX_SAMPLES = 100_000
"""Maximum numbers that are kept; of batches, the latest."""
LISTED = 4096
"""Maximum number of indices recorded per batch; `size` is always exact."""
SUSPECTS = 20

ReportEvent = Callable[[int, str, Mapping[str, Any]], None]


class Quarantine:
    """The bad batches of a run."""

    def __init__(self, report: ReportEvent, notices: Notices, *, avoid: bool) -> None:
        """`report` records an event."""
        self._report = report
        self._notices = notices
        self._avoid = avoid
        self._times: dict[str, int] = {}
        self._samples: Counter[tuple[str, Index]] = Counter()
        self._left_out = 0

    def __len__(self) -> int:
        return len(self._times)

    def take(self, step: int, batches: Sequence[RecordedBatch], reason: str) -> None:
        """The update was skipped: record the batches of the step as bad."""
        alone = len(batches) == 1
        guilty = batches if alone else [kept for kept in batches if _went_bad(kept)] or batches
        for kept in guilty:
            if kept.blamed:  # by another optimizer, or at an earlier step made of the same batch
                continue
            kept.blamed = True
            identity = kept.identity()
            self._remember(identity)
            data = {"reason": reason, **_described(kept, identity), "blamed": len(guilty)}
            if len(batches) > 1:
                data["micro_batch"] = kept.position
            data["times"] = self._times[identity.key]
            if suspects := self._suspects(identity):
                data["suspects"] = suspects
            self._report(step, QUARANTINE, data)

    def avoids(self, step: int, kept: RecordedBatch) -> bool:
        """Whether this batch is left out; records that it is."""
        if not (self._avoid and self._is_alone() and self._times and self._knows(kept)):
            self._left_out = 0
            return False
        if self._left_out >= len(self):
            # Every batch is avoided: an endless loader would never yield one.
            self._left_out = 0
            self._notices.once(
                "all-avoided",
                "every batch is on the list to avoid, so some are used anyway. "
                "If all batches are bad, look for the cause outside the data",
            )
            return False
        self._left_out += 1
        self._report(step, AVOIDED, _described(kept, kept.identity()))
        return True

    def state_dict(self) -> dict[str, Any]:
        """As JSON."""
        samples = [[*sample, count] for sample, count in self._samples.items()]
        return {"batches": dict(self._times), "samples": samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace what is known."""
        self._times = {str(key): int(times) for key, times in state["batches"].items()}
        self._samples = Counter(
            {(str(dataset), freeze_index(index)): int(n) for dataset, index, n in state["samples"]}
        )

    def read_back(self, events: Path) -> None:
        """Read the batches that an earlier segment of the run has recorded."""
        try:
            lines = events.read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            if QUARANTINE.encode() in line:  # before parsing: nearly all are other events
                self._read_line(line)
        if self._avoid and self._times:
            self._notices.once(
                "quarantine",
                f"the update was skipped for {len(self)} batches earlier in this run directory: "
                "they are avoided from the start. If the data is fixed, use a new run directory",
            )

    def _read_line(self, line: bytes) -> None:
        try:
            record = from_json(json.loads(line))
            if isinstance(record, EventRecord) and record.kind == QUARANTINE:
                data = record.data
                indices = tuple(freeze_index(index) for index in data.get("indices", ()))
                dataset = str(data.get("dataset", ""))
                self._remember(
                    BatchIdentity(str(data["key"]), indices, dataset, bool(data["sure"]))
                )
        except NO_RECORD:
            return

    def _remember(self, identity: BatchIdentity) -> None:
        key = identity.key
        if key not in self._times:
            for index in set(identity.indices):
                sample = (identity.dataset, index)
                if sample in self._samples or len(self._samples) < MAX_SAMPLES:
                    self._samples[sample] += 1
        self._times[key] = self._times.pop(key, 0) + 1
        if len(self._times) > MAX_BATCHES:
            del self._times[next(iter(self._times))]

    def _knows(self, kept: RecordedBatch) -> bool:
        by_content = any(key.startswith("content-") for key in self._times)
        if not kept.indices() and not by_content:
            return False  # saves a hash of every batch
        identity = kept.identity()
        return identity.sure and identity.key in self._times

    def _suspects(self, identity: BatchIdentity) -> list[list[Any]]:
        counted = [(index, self._samples[identity.dataset, index]) for index in identity.indices]
        often = sorted((item for item in counted if item[1] > 1), key=lambda item: -item[1])
        return [[index, count] for index, count in often[:SUSPECTS]]

    def _is_alone(self) -> bool:
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return True
        self._notices.once(
            "avoid-ranks",
            "avoid_bad_batches is off with more than one rank: a rank that skips a batch would "
            "take fewer steps, and the other ranks would wait for it forever",
            shared=True,
        )
        return False


def _described(kept: RecordedBatch, identity: BatchIdentity) -> dict[str, Any]:
    """Identity and origin of the batch, for the record."""
    data: dict[str, Any] = {"key": identity.key, "sure": identity.sure, "size": kept.size}
    if identity.indices:
        data |= {"dataset": identity.dataset, "indices": list(identity.indices[:LISTED])}
    if kept.origin is not None:
        data |= {"epoch": kept.origin.epoch, "batch": kept.origin.number}
    return data


def _went_bad(kept: RecordedBatch) -> bool:
    """Whether the batch's own loss is non-finite; waits for the device."""
    return any(not math.isfinite(float(loss)) for loss in kept.losses)
