"""Run directories in a store: staged locally, uploaded in parts, read again, retried."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.s3_server import serve_s3
from support.trainings import batches, make_net, squared_error

import headway
from headway.core.records import EventRecord, Header, StepRecord
from headway.core.signals import Signal
from headway.errors import FrameworkMissing, RunDirInUse, UnreadableInput
from headway.rundir import remote_run
from headway.rundir.remote_run import RemoteRun, fetch_run
from headway.rundir.run_files import input_path, is_url, local_path
from headway.rundir.run_lock import LOCK_FILE
from headway.rundir.run_reader import RunDir
from headway.rundir.writer import RunDirWriter

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_STAGING", str(tmp_path / "staging"))
    monkeypatch.setattr(remote_run, "UPLOAD_SECONDS", 0.02)
    monkeypatch.setattr(remote_run, "PART_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "staging"


@pytest.fixture
def memory_url() -> str:
    return f"memory://runs/{uuid.uuid4().hex}"


@pytest.fixture
def s3_url() -> Iterator[str]:
    with serve_s3() as (bucket, _):
        yield f"{bucket}/runs/first"


@pytest.fixture(params=["memory_url", pytest.param("s3_url", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def wait_until(done: Any) -> None:
    deadline = time.monotonic() + 30
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done()


def write_steps(writer: RunDirWriter, first: int, last: int) -> None:
    segment = writer.segment
    if first == 0 or segment:
        writer.write(Header("headway", {"loss": Signal()}, segment=segment))
    for step in range(first, last):
        record = StepRecord(segment, step + 1, step, {"loss": 2.0 - step / 100})
        writer.write(record, now=True)


def steps_in(url: str) -> list[int]:
    records = RunDir(fetch_run(url)).records()
    return [record.step for record in records if isinstance(record, StepRecord)]


def test_a_url_is_no_folder() -> None:
    assert is_url("s3://bucket/a")
    assert is_url("memory://a")
    assert not is_url("runs/a")
    assert not is_url("C:\\runs")
    assert not is_url("file:///tmp/a")
    assert local_path("file:///tmp/a") == Path("/tmp/a")


def test_a_run_is_uploaded_in_parts_and_read_again(url: str, tmp_path: Path) -> None:
    writer = RunDirWriter(url, notify=pytest.fail)
    store, root = remote_run.open_store(url)
    write_steps(writer, 0, 10)
    wait_until(lambda: store.exists(f"{root}/steps.rank0.jsonl.parts/000000"))
    write_steps(writer, 10, 30)
    writer.write(EventRecord(0, 40, 30, "end", {"steps": 30}), now=True)
    snapshot = writer.path / "snapshots" / "1-step20"
    snapshot.mkdir(parents=True)
    (snapshot / "state.pt").write_bytes(b"weights")
    writer.close()
    assert writer.location == url
    assert steps_in(url) == list(range(30))
    store.invalidate_cache()
    assert not store.exists(f"{root}/{LOCK_FILE}")
    assert (fetch_run(url) / "snapshots" / "1-step20" / "state.pt").read_bytes() == b"weights"
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(("s3", "memory"))]


def test_another_host_continues_the_run(url: str, staging: Path) -> None:
    first = RunDirWriter(url, notify=pytest.fail)
    write_steps(first, 0, 5)
    first.close()
    staging.rename(staging.with_name("another-host"))
    second = RunDirWriter(url, notify=pytest.fail)
    assert second.segment == 1
    write_steps(second, 5, 8)
    second.close()
    assert steps_in(url) == list(range(8))


def test_a_deleted_snapshot_leaves_the_store(memory_url: str) -> None:
    writer = RunDirWriter(memory_url, notify=pytest.fail)
    store, root = remote_run.open_store(memory_url)
    file = writer.path / "snapshots" / "1-step10" / "state.pt"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"1")
    wait_until(lambda: store.exists(f"{root}/snapshots/1-step10/state.pt"))
    file.unlink()
    wait_until(lambda: not store.exists(f"{root}/snapshots/1-step10/state.pt"))
    writer.close()


def test_a_snapshot_of_several_ranks_is_uploaded_whole_and_sealed_last(memory_url: str) -> None:
    remote = RemoteRun(memory_url, rank=0, notify=pytest.fail)
    home = remote.folder / "snapshots" / "1-step10"
    (home / "dcp").mkdir(parents=True)
    names = ["dcp/.metadata", "dcp/__0_0.distcp", "dcp/__1_0.distcp", "manifest.json"]
    for name in [*names, "dcp/.metadata.new", ".shared-1"]:
        (home / name).write_bytes(b"1")
    listed = [name.removeprefix("snapshots/1-step10/") for name in remote._files()]
    remote.close()
    assert sorted(listed) == sorted(names)
    assert listed[-1] == "manifest.json"
    assert sorted(remote_run._list(*remote_run.open_store(memory_url))) == sorted(
        f"snapshots/1-step10/{name}" for name in names
    )


def test_a_file_that_is_removed_before_its_upload_is_no_failure(memory_url: str) -> None:
    remote = RemoteRun(memory_url, rank=0, notify=pytest.fail)
    remote._send("snapshots/1-step10/rank1.json")
    assert not remote._sent
    remote.close()


def test_a_host_numbers_its_snapshots_after_those_in_the_store(
    memory_url: str, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise those of the first host would count as newer, and push out the new ones."""
    for host in range(2):
        monkeypatch.setenv("HEADWAY_STAGING", str(staging / str(host)))
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        plan = headway.Snapshots(every=5, disk_share=1.0)
        guard = headway.Guard(model, optimizer, run_dir=memory_url, snapshots=plan)
        assert guard.resume() == host * 10
        for x, y in guard(batches(11 * (host + 1), seed=0)):
            squared_error(model, (x, y)).backward()
            optimizer.step()
            optimizer.zero_grad()
        guard.close()
    homes = [folder.name for folder in (fetch_run(memory_url) / "snapshots").iterdir()]
    assert sorted(homes) == ["2-step10", "3-step15", "4-step20"]


class _BrokenStore:
    """A store that fails for a while."""

    def __init__(self, store: Any, failures: int) -> None:
        self._store = store
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def pipe_file(self, *args: Any) -> Any:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("503 Slow Down")
        return self._store.pipe_file(*args)


def test_a_store_that_fails_is_tried_again_and_reported_once(memory_url: str) -> None:
    notices: list[str] = []
    writer = RunDirWriter(memory_url, notify=notices.append)
    assert writer.remote is not None
    broken = _BrokenStore(writer.remote._store, 3)
    writer.remote._store = broken
    write_steps(writer, 0, 10)
    wait_until(lambda: broken.failures == 0)
    writer.close()
    assert steps_in(memory_url) == list(range(10))
    (notice,) = notices
    assert "503 Slow Down" in notice
    assert str(writer.path) in notice


def test_what_could_not_be_uploaded_is_kept_and_uploaded_by_the_next_process(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_run, "CLOSE_SECONDS", 0.3)
    notices: list[str] = []
    writer = RunDirWriter(memory_url, notify=notices.append)
    write_steps(writer, 0, 4)
    assert writer.remote is not None
    store, root = remote_run.open_store(memory_url)
    wait_until(lambda: store.exists(f"{root}/run.json"))
    wait_until(lambda: store.exists(f"{root}/steps.rank0.jsonl.parts/000003") or True)
    writer.remote._store = _BrokenStore(writer.remote._store, 10**6)
    write_steps(writer, 4, 9)
    writer.close()
    assert "could not be uploaded" in notices[-1]
    again = RunDirWriter(memory_url, notify=pytest.fail)
    again.close()
    assert steps_in(memory_url) == list(range(9))


def test_a_run_in_use_on_another_host_is_refused(memory_url: str) -> None:
    store, root = remote_run.open_store(memory_url)
    holder = {"pid": 7, "host": "node9.example", "start_ticks": 5, "since": time.time()}
    store.pipe_file(f"{root}/{LOCK_FILE}", json.dumps({**holder, "renewed": time.time()}).encode())
    with pytest.raises(RunDirInUse, match="process 7 on node9"):
        RunDirWriter(memory_url, notify=pytest.fail)
    store.pipe_file(f"{root}/{LOCK_FILE}", json.dumps({**holder, "renewed": 0}).encode())
    RunDirWriter(memory_url, notify=pytest.fail).close()


def test_diagnose_reads_a_url(memory_url: str) -> None:
    writer = RunDirWriter(memory_url, notify=pytest.fail)
    write_steps(writer, 0, 30)
    writer.close()
    report = headway.diagnose(memory_url)
    assert report.coverage.ran > 0
    with pytest.raises(UnreadableInput, match="does not exist"):
        headway.diagnose(memory_url + "-not-there")


def test_a_name_that_leads_out_of_the_run_is_refused(memory_url: str) -> None:
    store, root = remote_run.open_store(memory_url)
    store.pipe_file(f"{root}/../outside/run.json", b"{}")
    store.store[f"{root}/../../x"] = store.store.pop(
        next(iter(name for name in store.store if name.endswith("outside/run.json")))
    )
    with pytest.raises(UnreadableInput):
        fetch_run(memory_url)


def test_without_fsspec_a_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError("No module named 'fsspec'", name="fsspec")

    monkeypatch.setattr("headway.errors.importlib.import_module", missing)
    with pytest.raises(FrameworkMissing, match=r"pip install 'headway\[storage\]'"):
        RemoteRun("s3://bucket/a", rank=0, notify=pytest.fail)


def test_an_unknown_kind_of_store_is_a_usage_error() -> None:
    with pytest.raises(UnreadableInput, match="nowhere"):
        RunDirWriter("nowhere://a/b", notify=pytest.fail)


def test_whatever_a_store_raises_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable(Exception):
        """Not an OSError: the libraries of some stores have exceptions of their own."""

    class Store:
        def find(self, root: str, *, detail: bool) -> None:
            raise Unreachable("name or service not known")

    monkeypatch.setattr(remote_run, "open_store", lambda url: (Store(), "org/name"))
    with pytest.raises(UnreadableInput, match="cannot read hf://org/name: name or service"):
        remote_run.fetch_run("hf://org/name")


@pytest.mark.parametrize("text", ["a\0b", "x" * 5000, "a/" * 3000])
def test_what_can_be_no_path_is_a_message(text: str) -> None:
    with pytest.raises(UnreadableInput, match="is not a path"):
        input_path(text)
