"""Snapshots on disk: whole or nothing, never the only copy lost, loadable by anybody."""

from __future__ import annotations

import errno
import json
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
from support.strategies import lightly
from support.trainings import assert_same, batches, make_net, squared_error

from headway import Guard, Snapshots
from headway.errors import SettingsError
from headway.guard.recovery.snapshots import SnapshotStore


def state(value: float) -> dict[str, Any]:
    return {"models": [{"w": torch.full((3,), value)}], "text": "x", "numbers": (1, 2.0, None)}


def written(folder: Path, count: int = 3, keep: int = 5) -> SnapshotStore:
    store = SnapshotStore(folder, keep=keep)
    for number in range(1, count + 1):
        store.write(number, number * 10, state(number), {"rng": [number]})
    return store


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = written(tmp_path)
    assert list(store.newest_first()) == [(3, 30), (2, 20), (1, 10)]
    found, own = store.read(2, 20)
    assert_same(state(2)["models"], found["models"])
    assert found["numbers"] == (1, 2.0, None)
    assert own == {"rng": [2]}
    assert store.next_number() == 4


def test_only_so_many_are_kept_and_the_newest_always(tmp_path: Path) -> None:
    store = written(tmp_path, count=6, keep=2)
    assert list(store.newest_first()) == [(6, 60), (5, 50)]
    assert sorted(os.listdir(tmp_path)) == ["5-step50", "6-step60"]


def test_one_that_is_not_complete_retires_nobody(tmp_path: Path) -> None:
    """Rank 1 has not written its part of the newest: the two before it are still needed."""
    store = SnapshotStore(tmp_path, keep=1, ranks=2)
    for number in (1, 2):
        SnapshotStore(tmp_path, keep=1, rank=1, ranks=2).write(number, number, state(number), {})
        store.write(number, number, state(number), {})
    store.write(3, 3, state(3), {})
    assert sorted(os.listdir(tmp_path)) == ["2-step2", "3-step3"]


def test_what_others_left_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "step5", "x-step5", "5-stepx"):
        (tmp_path / name).mkdir()
    assert next(written(tmp_path).newest_first()) == (3, 30)
    assert (tmp_path / "notes.txt").exists()


@lightly
@given(
    st.sampled_from(["state.pt", "state.json", "rank0.pt", "rank0.json"]),
    st.sampled_from(["flip", "cut", "grow", "remove", "empty", "swap"]),
    st.floats(0, 1, exclude_max=True),
)
def test_a_damaged_snapshot_is_passed_over(
    tmp_path_factory: pytest.TempPathFactory, name: str, how: str, where: float
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = written(folder)
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
    found = next(store.newest_first())
    harmless = (how == "remove" and name == "rank0.json") or (
        name.endswith(".json") and how in ("flip", "cut", "grow") and _same_seal(path, data)
    )
    assert found == ((3, 30) if harmless else (2, 20))


def _same_seal(path: Path, data: bytes) -> bool:
    try:
        return bool(json.loads(path.read_bytes()) == json.loads(data))
    except ValueError:
        return False


def test_no_snapshot_of_a_stranger_runs_code(tmp_path: Path) -> None:
    """Sealed, but it would call a function when unpickled."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "owned"),)

    store = SnapshotStore(tmp_path, keep=3)
    store.write(1, 10, {"x": 1}, {})
    home = tmp_path / "1-step10"
    from headway.guard.recovery import snapshots as module

    module.write_with_seal(home, "state", {"x": Evil()})
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        store.read(1, 10)
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
    assert next(SnapshotStore(tmp_path / "snapshots", keep=3).newest_first()) == (2, 10)


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
    assert list(SnapshotStore(tmp_path / "snapshots", keep=3).newest_first()) == []


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
