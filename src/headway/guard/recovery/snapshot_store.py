"""Stores the snapshots of one process, and chooses the snapshot from which a run resumes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from headway.errors import ResumeRefused, UsageError
from headway.guard.recovery.snapshot_files import MAX_LISTED, Manifest, SnapshotFolder
from headway.guard.recovery.snapshots import Snapshot
from headway.guard.recovery.training_state import TrainingState
from headway.output.notices import Notices
from headway.rundir.remote_run import RunFolder
from headway.torch_adapters.nested_state import StatePath
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess

STATE = "state.pt"
OWN = "rank0.pt"


class SnapshotAbandoned(RuntimeError):
    """Some rank did not write its part, so the folder does not become a snapshot."""


class SavedTraining(NamedTuple):
    """The contents of a snapshot on disk, for one rank."""

    steps: int
    state: Any
    own: dict[str, Any]
    """State of a single rank: random numbers, the guard, the position in the data."""
    world_size: int
    """Ranks of the run that wrote it."""
    is_own: bool
    """Whether this rank wrote `own`; otherwise the run has more ranks now."""
    shared: tuple[StatePath, ...] = ()
    """Tensors that all ranks have received from rank 0."""


class SnapshotStore:
    """Writes and reads snapshots of a single process: `state.pt`, `rank0.pt` and the manifest."""

    def __init__(
        self, files: SnapshotFolder, *, keep: int, training: TrainingState, agreement: SingleProcess
    ) -> None:
        self.files = files
        self._keep = max(keep, 1)
        self._training = training
        self._agreement = agreement
        self._leaving = False
        # All ranks use the same: parts of another attempt with the same number never match.
        self._next, self._token = agreement.from_rank_zero(
            (self.files.next_number(), os.urandom(8).hex())
        )

    def shorten_wait(self) -> None:
        """The run ends with an error: do not wait long for the parts of other ranks."""
        self._leaving = True

    def prepare(self, snapshot: Snapshot, failed: str = "") -> Callable[[], None] | None:
        """The work of writing a snapshot, for another thread; None where no more are written.

        Every rank must call it at the same step. `failed`: why this rank cannot write. The job
        raises OSError, or torch's RuntimeError on a full disk; the earlier snapshots stay valid.
        """
        if failed:
            return None
        home, manifest = self._begin(snapshot.step, format="file")

        def write() -> None:
            if not snapshot.good:
                return
            self.files.create(home)
            parts = [
                self.files.write(home, OWN, snapshot.rank),
                self.files.write(home, STATE, snapshot.state),
            ]
            self.files.commit(home, manifest.sealed(parts))
            self.files.retire(self._keep)

        return write

    def read(self, home: str, manifest: Manifest) -> SavedTraining:
        """A snapshot that was chosen. Every rank must call it."""
        if manifest.format != "file" or self._agreement.count > 1:
            from headway.guard.recovery.distributed_reader import SnapshotReader

            return SnapshotReader(self.files, home, manifest, self._training, self._agreement)()
        state, own = self.files.read(home, STATE), self.files.read(home, OWN)
        return SavedTraining(manifest.step, state, own, 1, is_own=True)

    def _begin(self, step: int, **facts: Any) -> tuple[str, Manifest]:
        number, self._next = self._next, self._next + 1
        return f"{number}-step{step}", Manifest(id=f"{self._token}-{number}", step=step, **facts)


def open_store(
    run_dir: RunFolder, training: TrainingState, agreement: SingleProcess, keep: int
) -> SnapshotStore:
    """The snapshots of a run directory, in the format that this training needs."""
    files = SnapshotFolder(run_dir.path / agreement.folder, run_dir.stored)
    if agreement.count == 1 and not training.sharded:
        return SnapshotStore(files, keep=keep, training=training, agreement=agreement)
    from headway.guard.recovery.distributed_store import DistributedSnapshotStore

    return DistributedSnapshotStore(files, keep=keep, training=training, agreement=agreement)


def read_newest(
    run_dir: RunFolder, training: TrainingState, agreement: SingleProcess, notices: Notices
) -> SavedTraining | None:
    """The newest snapshot that is complete, the same on every rank; None where there is none.

    Raises ResumeRefused on every rank where there are snapshots and none can be used.
    """
    store = open_store(run_dir, training, agreement, keep=1)
    blind = find_blind_ranks(store.files, agreement)
    if blind:
        raise ResumeRefused(
            f"rank {blind[0]} does not see the files of rank 0 in {run_dir.path}, so the ranks "
            "cannot resume from the same snapshot. Use a run directory that all ranks share"
        )
    chosen = choose_snapshot(store.files, agreement, notices)
    if chosen is None:
        return None
    home, manifest = chosen
    if manifest.fixed_size and manifest.world_size != agreement.count:
        raise ResumeRefused(
            f"snapshot {home} was written by {manifest.world_size} ranks, but this run has "
            f"{agreement.count}: {manifest.fixed_size}. Start {manifest.world_size} ranks"
        )
    if manifest.format == "file" and training.sharded:
        raise ResumeRefused(
            f"snapshot {home} was written by one process with an unsharded model, but this model "
            "is sharded: start one process without fully_shard"
        )
    return store.read(home, manifest)


def agree_on_folder(
    find_folder: Callable[[], RunFolder | None], agreement: SingleProcess
) -> RunFolder:
    """The run directory on this rank. If one rank has none, all raise."""
    folder, problem = None, ""
    try:
        folder = find_folder()
    except (UsageError, OSError) as error:
        if agreement.count == 1:
            raise
        problem = str(error)
    if folder is None and not problem:
        problem = "guard.resume() needs a run directory: pass one to it or to Guard"
    for rank, text in enumerate(agreement.gather(problem)):
        if text:
            raise UsageError(text if agreement.count == 1 else f"rank {rank}: {text}")
    assert folder is not None
    return folder


def find_blind_ranks(files: SnapshotFolder, agreement: SingleProcess) -> list[int]:
    """The ranks that do not see what rank 0 writes: the directory is not shared."""
    if agreement.count == 1:
        return []
    url = "" if files.stored is None else files.stored.url
    written = files.write_mark() if agreement.rank == 0 else ""
    mark, url_of_rank_zero = agreement.from_rank_zero((written, url))
    sees = agreement.gather((files.sees_mark(mark), url == url_of_rank_zero))
    if agreement.rank == 0:
        files.remove_mark(mark)
    blind = [rank for rank, (seen, _) in enumerate(sees) if seen != sees[0][0]]
    if url_of_rank_zero and all(same for _, same in sees):  # other hosts meet in the store
        files.apart, files.far = bool(blind), agreement.rank in blind
        return []
    return blind


def choose_snapshot(
    files: SnapshotFolder, agreement: SingleProcess, notices: Notices
) -> tuple[str, Manifest] | None:
    """The newest complete snapshot."""
    mine = {home: files.manifest(home) for home in files.names()}
    views = agreement.gather(mine)
    passed_over: list[str] = []
    if files.apart:  # an upload that was not finished: one host has more than the others
        mine = {
            home: manifest
            for home, manifest in views[0].items()
            if manifest is not None and all(view.get(home) == manifest for view in views)
        }
        passed_over = [f"{home} is not on every host" for home in views[0] if home not in mine]
    else:
        _require_shared(files, views)
    for home, manifest in mine.items():
        if manifest is None:
            passed_over.append(f"{home} has no manifest, so its write was not finished")
            continue
        problems = _find_problems(files, home, manifest, agreement)
        if not problems:
            if passed_over:
                notices.once(
                    "resume-older",
                    f"resuming from snapshot {home}: {'; '.join(passed_over)}",
                    shared=True,
                )
            return home, manifest
        passed_over.append(f"{home}: {_few(problems)}")
    if any(manifest is not None for manifest in mine.values()):
        raise ResumeRefused(
            f"no snapshot in {files} is complete: {'; '.join(passed_over)}. Restore the missing "
            "files, or remove the folder to start from the beginning"
        )
    if passed_over:
        notices.once(
            "resume-none",
            f"starting from the beginning: {_few(passed_over)} (in {files})",
            shared=True,
        )
    return None


def _require_shared(files: SnapshotFolder, views: list[dict[str, Manifest | None]]) -> None:
    """Refuse where ranks see different files: each would resume from another state."""
    for rank, view in enumerate(views):
        if view != views[0]:
            here, there = (
                {home: None if manifest is None else manifest.id for home, manifest in one.items()}
                for one in (views[0], view)
            )
            home = next(home for home in {**here, **there} if here.get(home) != there.get(home, ""))
            raise ResumeRefused(
                f"rank {rank} and rank 0 see different snapshots in {files}: only one of them sees "
                f"{home} as it is. Use a run directory that all ranks share"
            )


def _find_problems(
    files: SnapshotFolder, home: str, manifest: Manifest, agreement: SingleProcess
) -> list[str]:
    # Each byte is read by one rank, unless hosts have copies of their own.
    parts = manifest.parts if files.apart else manifest.parts[agreement.rank :: agreement.count]
    mine = [problem for part in parts if (problem := files.problem_of(home, part))]
    missing = [] if manifest.parts else ["its manifest lists no parts"]
    return missing + [problem for found in agreement.gather(mine) for problem in found]


def _few(problems: list[str]) -> str:
    more = len(problems) - MAX_LISTED
    return "; ".join(problems[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
