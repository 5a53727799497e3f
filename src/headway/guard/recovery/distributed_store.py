"""Stores snapshots of several ranks with torch.distributed.checkpoint (DCP).

Each rank writes one file. A tensor that is sharded (DTensor) is in the files of the ranks that hold
it; one that is the same on all ranks is in one file; any other is stored once for each rank. Which
tensors are the same is compared at every snapshot, not assumed: stages of a pipeline, flat
parameters of FullyShardedDataParallel and running statistics differ.

    snapshots/<n>-step<k>/dcp/           what torch.distributed.checkpoint wrote
                          rank<R>.json   what rank R wrote; removed when the manifest is there
                          manifest.json  written by rank 0 when every rank has written its part
"""

from __future__ import annotations

import dataclasses
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from headway.guard.recovery.distributed_reader import (
    PER_RANK,
    PIECES,
    SHARED,
    TENSOR,
    own_key,
    packed_key,
    state_key,
)
from headway.guard.recovery.snapshot_files import Manifest, SnapshotPart
from headway.guard.recovery.snapshot_store import SnapshotAbandoned, SnapshotStore
from headway.guard.recovery.snapshots import Snapshot
from headway.guard.recovery.training_state import TrainingState, digest_tensor
from headway.torch_adapters.nested_state import StatePath, find_tensors
from headway.torch_adapters.process_groups.sharded_tensors import (
    describe_mesh,
    is_dtensor,
    is_local_shard,
)

FIRST_WAIT_S = 60.0
"""Seconds that rank 0 waits for the parts of the other ranks, in addition to ten times its own."""
WAIT_AT_EXIT_S = 10.0
"""The same when the run ends with an error, or without closing the guard."""
POLL_S = 0.02
STORE_WAIT_S = 600.0
"""Seconds that rank 0 waits for other hosts to upload their parts."""
STORE_WAIT_AT_EXIT_S = 60.0
STORE_POLL_S = 1.0
MIN_PACKED_BYTES = 1 << 16


class DistributedSnapshotStore(SnapshotStore):
    """Writes the snapshots of several ranks; `prepare` is collective."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plan: tuple[Any, _WritePlan] | None = None
        self._training.find_replicated(self._agreement.count)

    def prepare(self, snapshot: Snapshot, failed: str = "") -> Callable[[], None] | None:
        agreement = self._agreement
        tensors = _TensorsOf(snapshot.state, self._training, agreement.rank)
        # Hashing waits for the copy, which the caller needs now anyway.
        good = snapshot.good
        marks = agreement.gather((failed, good, tensors.digests() if good else {}))
        if any(reason for reason, _, _ in marks):
            return None
        home, manifest = self._begin(snapshot.step, format="dcp", world_size=agreement.count)
        if not all(good for _, good, _ in marks):
            return lambda: None
        tensors.divide([digests for _, _, digests in marks])
        tensors.pack(snapshot.rank)
        plan = self._plan_for(tensors)
        manifest = dataclasses.replace(
            manifest,
            strategy=tensors.strategy(),
            mesh=describe_mesh(self._training.weights()),
            fixed_size=self._training.fixed_size() or tensors.fixed_size(),
        )
        return lambda: self._write(home, manifest, plan, tensors.pieces())

    def _plan_for(self, tensors: _TensorsOf) -> _WritePlan:
        """Which rank writes what; planned again when the tensors of some rank have changed."""
        agreement = self._agreement
        same = self._plan is not None and self._plan[0] == tensors.structure
        if self._plan is not None and agreement.all_agree(same):
            return self._plan[1]
        planner = DefaultSavePlanner()
        planner.set_up_planner(tensors.planned(), is_coordinator=agreement.rank == 0)
        local = planner.create_local_plan()
        plans, metadata = planner.create_global_plan(agreement.gather(local))
        plan = _WritePlan(plans, metadata, agreement.rank)
        self._plan = (tensors.structure, plan)
        return plan

    def _write(
        self, home: str, manifest: Manifest, plan: _WritePlan, pieces: dict[str, Tensor]
    ) -> None:
        began = time.monotonic()
        files, rank = self.files, self._agreement.rank
        files.create(home)
        writer = FileSystemWriter(files.place(home) / PIECES)
        results = plan.write(writer, pieces)
        names = files.listed(home, f"{PIECES}/__{rank}_*")
        parts = [files.seal(home, name, rank) for name in names]
        report = {
            "id": manifest.id,
            "parts": [dataclasses.asdict(part) for part in parts],
            "results": [_result_to_json(result) for result in results],
        }
        files.write_text(home, f"rank{rank}.json", json.dumps(report))
        if rank == 0:
            own = time.monotonic() - began
            limit = STORE_WAIT_S if files.apart else FIRST_WAIT_S + 10 * own
            reports = self._await_reports(home, manifest, limit)
            found = [_results_from_json(one["results"], results[0]) for one in reports]
            writer.finish(plan.metadata, found)
            parts = [SnapshotPart(**part) for one in reports for part in one["parts"]]
            parts.append(files.seal(home, f"{PIECES}/.metadata", 0))
            files.commit(home, manifest.sealed(parts))
            for name in files.listed(home, "rank*.json"):
                files.discard(home, name)
            files.retire(self._keep)
        else:
            files.retire_copies(self._keep + 1)

    def _await_reports(self, home: str, manifest: Manifest, seconds: float) -> list[dict[str, Any]]:
        """The parts that all ranks have written; this shows that the directory is shared."""
        reports: dict[int, dict[str, Any]] = {}
        names = {f"rank{rank}.json": rank for rank in range(self._agreement.count)}
        deadline, ended = time.monotonic() + seconds, 0.0
        while True:
            known = [f"rank{rank}.json" for rank in reports]
            for name, text in self.files.read_reports(home, "rank*.json", known).items():
                report = json.loads(text or "{}")
                if report.get("id") == manifest.id and name in names:
                    reports[names[name]] = report
            if len(reports) == self._agreement.count:
                return [reports[rank] for rank in sorted(reports)]
            if not ended and (self._leaving or not threading.main_thread().is_alive()):
                ended = time.monotonic()
                patience = STORE_WAIT_AT_EXIT_S if self.files.apart else WAIT_AT_EXIT_S
                deadline = min(deadline, ended + patience)
            if time.monotonic() > deadline:
                absent = [str(r) for r in range(self._agreement.count) if r not in reports]
                raise SnapshotAbandoned(
                    f"snapshot {home} is not complete: rank 0 does not see the part of rank "
                    f"{', '.join(absent)}, which has died or writes to another directory"
                )
            time.sleep(STORE_POLL_S if self.files.apart else POLL_S)


class _WritePlan:
    """DCP's plan of which rank writes what. Created without DCP's own collectives, which would
    run in the writing thread at the same time as those of the training."""

    def __init__(self, plans: Any, metadata: Any, rank: int) -> None:
        self._plans = plans
        self._rank = rank
        self.metadata = metadata

    def write(self, writer: FileSystemWriter, pieces: Mapping[str, Tensor]) -> list[WriteResult]:
        """Write this rank's share."""
        writer.set_up_storage_writer(self._rank == 0)
        writer.prepare_local_plan(self._plans[self._rank])
        plan = writer.prepare_global_plan(self._plans)[self._rank]
        results: list[WriteResult] = writer.write_data(plan, _CopiedData(pieces)).wait()
        return results


class _CopiedData(DefaultSavePlanner):
    """Gives DCP this rank's copies of the tensors that were planned."""

    def __init__(self, pieces: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._pieces = pieces

    def resolve_data(self, write_item: Any) -> Tensor:
        return self._pieces[write_item.index.fqn].detach()


class _TensorsOf:
    """The tensors of one snapshot, by the way in which they are stored."""

    def __init__(self, state: Any, training: TrainingState, rank: int) -> None:
        self._state = state
        self._training = training
        self._rank = rank
        self._copies = dict(_find_copies(state))
        self._live = {path: t for path, t in find_tensors(training.capture()) if is_dtensor(t)}
        self._plain = [path for path in self._copies if path not in self._live]
        self._own: set[StatePath] = set()
        self._packed = torch.zeros(0, dtype=torch.uint8)

    def digests(self) -> dict[str, str]:
        """A checksum of every tensor that may or may not be the same on all ranks."""
        replicated = self._training.is_replicated
        return {
            state_key(path): "" if replicated(path) else digest_tensor(self._copies[path])
            for path in self._plain
        }

    def divide(self, digests: list[dict[str, str]]) -> None:
        """Find the tensors that are the same on all ranks: these are shared."""
        for path in self._plain:
            if len({of_rank.get(state_key(path)) for of_rank in digests}) > 1:
                self._own.add(path)

    def pack(self, own: Any) -> None:
        """Add what is not a tensor: this rank's own, and the outline of the whole state."""
        self._packed = _pack({"own": own, "outline": _map_copies(self._state, self._outlined)})

    def planned(self) -> dict[str, Any]:
        """The items that this rank can write; DCP chooses one rank where several can."""
        named = {self._name(path): self._live.get(path, t) for path, t in self._copies.items()}
        return {**named, packed_key(self._rank): self._packed}

    def pieces(self) -> dict[str, Tensor]:
        """This rank's copy of everything that it offers."""
        named = {self._name(path): tensor for path, tensor in self._copies.items()}
        return {**named, packed_key(self._rank): self._packed}

    @property
    def structure(self) -> Any:
        """Changes when the plan must."""
        return [(name, tuple(t.shape), str(t.dtype)) for name, t in self.planned().items()]

    def strategy(self) -> str:
        if self._live:
            return "sharded"
        return "per rank" if self.fixed_size() else "replicated"

    def fixed_size(self) -> str:
        """Why another number of ranks cannot use the snapshot; empty: it can."""
        learned = sorted(state_key(path) for path in self._own if self._training.is_learned(path))
        if not learned:
            return ""
        return (
            f"each rank has its own weights or moments ({learned[0]} and {len(learned) - 1} more)"
        )

    def _name(self, path: StatePath) -> str:
        return own_key(self._rank, path) if path in self._own else state_key(path)

    def _outlined(self, tensor: Tensor, path: StatePath) -> Any:
        whole = self._live.get(path, tensor)
        return {
            TENSOR: PER_RANK if path in self._own else SHARED,
            "shape": tuple(whole.shape),
            "dtype": str(whole.dtype).removeprefix("torch."),
        }


def _pack(content: Any) -> Tensor:
    """Plain data as bytes. Padded, so that the plan does not change when they grow a little."""
    file = io.BytesIO()
    torch.save(content, file)
    data = len(file.getvalue()).to_bytes(8, "big") + file.getvalue()
    size = max(1 << len(data).bit_length(), MIN_PACKED_BYTES)
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def _find_copies(state: Any, path: StatePath = ()) -> Iterator[tuple[StatePath, Tensor]]:
    """Every tensor of a snapshot in memory; of a sharded one, this rank's part."""
    copies: list[tuple[StatePath, Tensor]] = []
    _map_copies(state, lambda tensor, path: copies.append((path, tensor)))
    return iter(copies)


def _map_copies(
    value: Any, change: Callable[[Tensor, StatePath], Any], path: StatePath = ()
) -> Any:
    if is_local_shard(value):
        return change(value.local, path)
    if isinstance(value, Tensor):
        return change(value, path)
    if isinstance(value, Counter):
        return value
    if isinstance(value, Mapping):
        return {key: _map_copies(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_map_copies(item, change, (*path, at)) for at, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def _result_to_json(result: WriteResult) -> list[Any]:
    index, place = result.index, result.storage_data
    offset = None if index.offset is None else list(index.offset)
    where = [place.relative_path, place.offset, place.length]
    return [index.fqn, offset, index.index, result.size_in_bytes, where]


def _results_from_json(rows: list[Any], example: WriteResult) -> list[WriteResult]:
    """`example`: a result of this rank, for the class of DCP's storage data."""
    found = []
    for name, offset, index, size, (path, start, length) in rows:
        place = dataclasses.replace(
            example.storage_data, relative_path=path, offset=start, length=length
        )
        at = MetadataIndex(name, None if offset is None else torch.Size(offset), index)
        found.append(WriteResult(index=at, size_in_bytes=size, storage_data=place))
    return found
