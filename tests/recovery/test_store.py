"""Snapshots on disk: whole or nothing, never the only copy lost, loadable by anybody."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_folders import complete_snapshots
from support.strategies import lightly
from support.trainings import assert_same, batches, make_net, squared_error

from headway import Guard, Snapshots
from headway.errors import ResumeRefused, SettingsError
from headway.guard.recovery.snapshot_files import Manifest, SnapshotFolder
from headway.guard.recovery.snapshot_store import SnapshotStore, choose_snapshot
from headway.guard.recovery.snapshots import Snapshot
from headway.guard.recovery.training_state import TrainingState
from headway.output.notices import Notices
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess


def state(value: float) -> dict[str, Any]:
    models = [{"w": torch.full((3,), value)}]
    return {"models": models, "others": {}, "text": "x", "numbers": (1, 2.0, None)}


def open_folder(folder: Path, keep: int = 5) -> SnapshotStore:
    return SnapshotStore(
        SnapshotFolder(folder),
        keep=keep,
        training=TrainingState([], [], {}),
        agreement=SingleProcess(),
    )


def write(store: SnapshotStore, step: int, content: Any, own: Any) -> None:
    job = store.prepare(Snapshot(step, content, own))
    assert job is not None
    job()


def written(folder: Path, count: int = 3, keep: int = 5) -> SnapshotStore:
    store = open_folder(folder, keep)
    for number in range(1, count + 1):
        write(store, number * 10, state(number), {"rng": [number]})
    return store


def newest(folder: Path) -> tuple[str, Manifest] | None:
    return choose_snapshot(SnapshotFolder(folder), SingleProcess(), Notices())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = written(tmp_path)
    assert complete_snapshots(tmp_path) == [(3, 30), (2, 20), (1, 10)]
    manifest = store.files.manifest("2-step20")
    assert manifest is not None
    assert (manifest.step, manifest.world_size, manifest.strategy) == (20, 1, "single")
    assert [part.name for part in manifest.parts] == ["rank0.pt", "state.pt"]
    found = store.read("2-step20", manifest)
    assert_same(state(2)["models"], found.state["models"])
    assert found.state["numbers"] == (1, 2.0, None)
    assert found.own == {"rng": [2]}
    assert store.files.next_number() == 4


def test_only_so_many_are_kept_and_the_newest_always(tmp_path: Path) -> None:
    written(tmp_path, count=6, keep=2)
    assert complete_snapshots(tmp_path) == [(6, 60), (5, 50)]
    assert sorted(os.listdir(tmp_path)) == ["5-step50", "6-step60"]


def test_one_that_is_not_complete_retires_nobody(tmp_path: Path) -> None:
    store = written(tmp_path, count=2)
    store.files.create("3-step30")
    store.files.write("3-step30", "state.pt", state(3))
    store.files.retire(1)
    assert sorted(os.listdir(tmp_path)) == ["2-step20", "3-step30"]


def test_what_others_left_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "step5", "x-step5", "5-stepx"):
        (tmp_path / name).mkdir()
    written(tmp_path)
    assert newest(tmp_path)[0] == "3-step30"  # type: ignore[index]
    assert (tmp_path / "notes.txt").exists()


@lightly
@given(
    st.sampled_from(["state.pt", "rank0.pt", "manifest.json"]),
    st.sampled_from(["flip", "cut", "grow", "remove", "empty", "swap"]),
    st.floats(0, 1, exclude_max=True),
)
def test_a_damaged_snapshot_is_passed_over(
    tmp_path_factory: pytest.TempPathFactory, name: str, how: str, where: float
) -> None:
    folder = tmp_path_factory.mktemp("store")
    written(folder)
    path = folder / "3-step30" / name
    data = path.read_bytes()
    at = int(where * len(data))
    if how == "flip":
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
    elif how == "cut":
        path.write_bytes(data[:at])
    elif how == "grow":
        path.write_bytes(data + b"\0")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "swap":
        path.write_bytes((folder / "2-step20" / name).read_bytes())
    else:
        path.unlink()
    found = newest(folder)
    assert found is not None
    if found[0] == "3-step30":  # only a note in the manifest that nothing depends on
        assert name == "manifest.json"
        assert found[1].parts == Manifest.from_json(data.decode()).parts  # type: ignore[union-attr]
    else:
        assert found[0] == "2-step20"


def test_snapshots_that_are_all_damaged_are_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path, count=2)
    (tmp_path / "2-step20" / "state.pt").unlink()
    with open(tmp_path / "1-step10" / "rank0.pt", "ab") as file:
        file.write(b"x")
    with pytest.raises(ResumeRefused, match=r"2-step20: state.pt of rank 0 is missing; 1-step10: "):
        newest(tmp_path)


def test_a_write_that_was_not_finished_is_named_and_the_run_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_folder(tmp_path)
    store.files.create("1-step10")
    store.files.write("1-step10", "state.pt", state(1))
    assert newest(tmp_path) is None
    assert "1-step10 has no manifest, so its write was not finished" in caplog.text


def test_no_snapshot_of_a_stranger_runs_code(tmp_path: Path) -> None:
    """Sealed, but it would call a function when unpickled."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "owned"),)

    store = open_folder(tmp_path)
    write(store, 10, {"x": Evil(), "others": {}}, {})
    found = newest(tmp_path)
    assert found is not None
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        store.read(*found)
    assert not (tmp_path / "owned").exists()


def train(guard: Guard, model: Any, optimizer: Any, steps: int = 30) -> None:
    for batch in guard(batches(steps)):
        squared_error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_snapshot_of_a_run_loads_with_torch_alone(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = Snapshots(every=10, disk_share=1.0)
    with Guard(model, optimizer, run_dir=tmp_path, snapshots=plan) as guard:
        train(guard, model, optimizer)
    newest = tmp_path / "snapshots" / "3-step30" / "state.pt"
    loaded = torch.load(newest, weights_only=True)
    other = make_net(seed=4)
    other.load_state_dict(loaded["models"][0]["state"])
    assert_same(dict(model.state_dict()), dict(other.state_dict()))
    torch.optim.AdamW(other.parameters()).load_state_dict(loaded["optimizers"][0])


def test_writing_takes_only_its_share_of_the_time(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = Snapshots(every=1, disk_share=1e-6)
    with Guard(model, optimizer, run_dir=tmp_path, snapshots=plan) as guard:
        train(guard, model, optimizer)
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_a_disk_that_fails_costs_the_snapshots_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = Snapshots(every=5, disk_share=1.0)
    with Guard(model, optimizer, run_dir=tmp_path, snapshots=plan) as guard:
        train(guard, model, optimizer, 12)
        guard._session.recovery.snapshotter.wait()

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            train(guard, model, optimizer, 12)
            guard._session.recovery.snapshotter.wait()
        train(guard, model, optimizer, 12)
    assert guard.step == 36
    assert (
        "No space left on device; training continues without new ones, earlier ones stay valid"
        in caplog.text
    )
    assert complete_snapshots(tmp_path / "snapshots")[0] == (2, 10)


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """No file may grow beyond 8 KiB: torch's own writer meets the limit inside a tensor."""
    script = textwrap.dedent(
        """
        import resource, signal, sys, torch
        from torch import nn
        from headway import Guard, Snapshots

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        model = nn.Linear(100, 100)
        optimizer = torch.optim.AdamW(model.parameters())
        plan = Snapshots(every=2, disk_share=1.0)
        with Guard(model, optimizer, run_dir=sys.argv[1], snapshots=plan) as guard:
            for _ in guard(range(10)):
                model(torch.randn(4, 100)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        print("steps", guard.step)
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.stdout == "steps 10\n", process.stderr
    assert "cannot write snapshots" in process.stderr
    assert "Traceback" not in process.stderr
    assert complete_snapshots(tmp_path / "snapshots") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": -1}, "every"),
        ({"on_disk": -1}, "on_disk"),
        ({"in_memory": 0}, "in_memory"),
        ({"disk_share": 0.0}, "disk_share"),
        ({"disk_share": 1.5}, "disk_share"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Snapshots(**options)
