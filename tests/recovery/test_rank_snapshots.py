"""Snapshots of one rank among several, without the others: what it keeps, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from support.trainings import make_net

from headway.core.numbers import say_bytes
from headway.errors import ResumeRefused
from headway.guard.recovery import snapshotter as module
from headway.guard.recovery.snapshot_files import Manifest, SnapshotFolder
from headway.guard.recovery.snapshot_store import choose_snapshot
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.recovery.snapshotter import Snapshotter
from headway.guard.recovery.training_state import TrainingState
from headway.output.notices import Notices
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess

T = TypeVar("T")


class FourRanks(SingleProcess):
    """The others say what this one says, unless a test lets them say something else."""

    count = 4

    def __init__(self, others: Any = None) -> None:
        super().__init__()
        self._others = others

    def gather(self, value: T) -> list[T]:
        other = value if self._others is None else self._others(value)
        return [value, other, other, other]


def make_snapshotter(rank: int = 0, **settings: Any) -> Snapshotter:
    model = make_net()
    notices = Notices()
    notices.rank = rank
    training = TrainingState([model], [torch.optim.Adam(model.parameters())], {})
    return Snapshotter(
        training,
        Snapshots(**settings),
        run_dir=None,
        own=dict,
        notices=notices,
        agreement=FourRanks(),
    )


@pytest.mark.parametrize("after_a_save", range(12))
def test_a_save_leaves_a_snapshot_to_roll_back_to(tmp_path: Path, after_a_save: int) -> None:
    """At every step after a save: the one that is written to disk is too young to be trusted."""
    snapshotter = make_snapshotter(every=10)
    snapshotter.first(0)
    for step in range(1, 41):
        snapshotter.at_boundary(step)
        if step % 10 == 1:  # as `save` does it, without a disk
            snapshotter._settle()
            snapshotter._take(step, to_disk=False)
            snapshotter._settle()
        if step >= 10 and step % 10 == (1 + after_a_save) % 10:
            assert snapshotter.can_roll_back(step), step


def test_memory_is_divided_by_the_ranks_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 3 * make_snapshotter_bytes()
    monkeypatch.setattr(module, "available_bytes", lambda: 16 * needed)
    assert make_snapshotter(in_memory=2)._room == 2, "half of a quarter each: two fit"
    monkeypatch.setattr(module, "available_bytes", lambda: 16 * needed - 8)
    assert make_snapshotter(in_memory=2)._room == 1


def test_too_little_memory_is_told_once_in_a_unit_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needed = 3 * make_snapshotter_bytes()
    monkeypatch.setattr(module, "available_bytes", lambda: 4 * needed)
    make_snapshotter(in_memory=2)
    (told,) = caplog.messages
    size = say_bytes(needed)
    assert f"a snapshot takes {size} of host memory and {size} are free for each rank" in told
    caplog.clear()
    make_snapshotter(in_memory=2, rank=1)
    assert not caplog.messages, "rank 0 has said it"


def make_snapshotter_bytes() -> int:
    return sum(t.nbytes for t in make_net().state_dict().values())


def test_ranks_that_see_different_snapshots_refuse(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path)
    folder.create("1-step4")
    part = folder.write("1-step4", "state.pt", {"x": 1})
    folder.commit("1-step4", Manifest(id="a", step=4, format="dcp").sealed([part]))
    chosen = choose_snapshot(folder, FourRanks(), Notices())
    assert chosen is not None
    with pytest.raises(ResumeRefused, match="rank 1 and rank 0 see different snapshots"):
        choose_snapshot(folder, FourRanks(lambda value: {}), Notices())


def test_a_problem_that_one_rank_finds_counts_for_all(tmp_path: Path) -> None:
    """Ranks divide the parts among themselves: rank 2 finds what this one does not look at."""
    folder = SnapshotFolder(tmp_path)
    for number in (1, 2):
        home = f"{number}-step{number}"
        folder.create(home)
        part = folder.write(home, "state.pt", {"x": number})
        folder.commit(home, Manifest(id=home, step=number, format="dcp").sealed([part]))
    asked = 0

    def say(value: Any) -> Any:
        nonlocal asked
        asked += 1
        return ["dcp/__2_0.distcp of rank 2 is missing"] if asked == 2 else value

    chosen = choose_snapshot(folder, FourRanks(say), Notices())
    assert chosen is not None
    assert chosen[0] == "1-step1"
