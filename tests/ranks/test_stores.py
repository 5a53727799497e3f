"""Runs whose directory is a URL: snapshots, other hosts, other numbers of ranks, failing stores.

The store is a local folder through fsspec, and an S3 server where s3fs and moto are installed
(`make test-stores`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.rank_processes import RanksFailed, run_ranks
from support.rank_trainings import listen
from support.s3_server import serve_s3
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from headway import Guard, Snapshots
from headway.errors import HeadwayError
from headway.guard.recovery import distributed_store, snapshot_files
from headway.rundir import remote_run

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.slow
STEPS = {1: 48, 2: 24}


@dataclass(frozen=True)
class Run:
    """One start of a training whose run directory is a URL."""

    url: str
    staging: Path
    hosts: tuple[int, ...] = (0, 0)
    """The host of each rank: each host has a staging folder of its own."""
    every: int = 8
    kill_at: int | None = None
    kill_in_upload: str = ""
    """Rank 0 is killed before it uploads this file of its second snapshot."""
    settle: bool = True
    """Whether a killed run has uploaded everything before."""
    resume: str | None = None
    """The URL to resume from, if it is another."""

    env: tuple[tuple[str, str], ...] = ()
    """How the ranks reach the store."""

    def but(self, **changes: Any) -> Run:
        return replace(self, **changes)


def train(rank: int, run: Run) -> dict[str, Any]:
    said = listen()
    os.environ.update(run.env)
    fsspec.config.set_conf_env(fsspec.config.conf)
    host = run.hosts[rank]
    os.environ["HEADWAY_STAGING"] = str(run.staging / f"host{host}")
    os.environ["LOCAL_RANK"] = str(run.hosts[:rank].count(host))
    os.environ["WORLD_SIZE"] = str(dist.get_world_size())
    remote_run.UPLOAD_SECONDS = remote_run.PART_SECONDS = 0.02
    distributed_store.STORE_POLL_S = 0.02
    snapshot_files.MARK_WAIT_S = 0.3
    os.chdir(run.staging)
    die_in_upload(rank, run.kill_in_upload)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    plan = Snapshots(every=run.every, disk_share=1.0)
    guard = Guard(model, optimizer, run_dir=run.url, snapshots=plan)
    try:
        start = guard.resume(run.resume)
    except HeadwayError as error:
        guard.close()
        return {"refused": str(error)}
    begin = [p.detach().clone() for p in model.parameters()]
    seen: list[int] = []
    data = TensorDataset(torch.sin(torch.arange(384.0)).view(96, 4), torch.arange(96))
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=False)
    for _ in guard.epochs(1):
        for x, indices in guard(DataLoader(data, 2, sampler=sampler)):
            if guard.step == run.kill_at:
                guard._session.recovery.snapshotter.wait()
                if run.settle:
                    writer = guard._session.recorder.writer
                    assert writer is not None
                    writer.close()  # what is uploaded within seconds
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += indices.tolist()
    guard.close()
    weights = [p.detach().clone() for p in model.parameters()]
    return {
        "start": start,
        "begin": begin,
        "seen": seen,
        "weights": weights,
        "said": said,
        "steps": guard.step,
    }


def die_in_upload(rank: int, name: str) -> None:
    if not name or rank:
        return
    original, sent = remote_run.RemoteRun._send, set[str]()

    def send(self: Any, at: str) -> None:
        if at.startswith("snapshots/2-") and at.endswith(name):
            if not any(known.startswith("snapshots/1-") for known in sent):
                raise OSError("the first snapshot is not complete yet")  # tried again
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, at)
        if at.endswith("manifest.json"):
            sent.add(at)

    remote_run.RemoteRun._send = send  # type: ignore[method-assign]


@pytest.fixture(params=["local", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "staging").mkdir()
    if request.param == "local":
        env = (("FSSPEC_LOCAL_AUTO_MKDIR", "true"),)
        yield Run(f"local://{tmp_path}/store/run", tmp_path / "staging", env=env)
        return
    with serve_s3() as (bucket, env):
        yield Run(f"{bucket}/run", tmp_path / "staging", env=tuple(env.items()))


def start(run: Run, size: int = 2) -> list[Any]:
    try:
        found = run_ranks(train, size, run, lone=True)
    except RanksFailed:  # the others notice that one was killed
        if not run.kill_in_upload:
            raise
        found = [None] * size
    inside = {item.name for item in run.staging.iterdir()}
    assert inside <= {f"host{number}" for number in range(4)}, "a URL is no local folder"
    return found


def weights_of(found: list[Any]) -> list[torch.Tensor]:
    weights: list[torch.Tensor] = found[0]["weights"]
    for other in found:
        assert all(map(torch.equal, weights, other["weights"]))
    return weights


def snapshots_in(url: str) -> list[str]:
    """The complete snapshots of a store, the oldest first."""
    store, root = remote_run.open_store(url)
    store.invalidate_cache()
    names = [name.split("/") for name in remote_run._list(store, root)]
    homes = [name[1] for name in names if name[0] == "snapshots" and name[-1] == "manifest.json"]
    return sorted(homes, key=lambda home: int(home.split("-")[0]))


def test_ranks_of_two_hosts_meet_in_the_store(run: Run) -> None:
    """Killed after step 20, resumed on two other hosts, then on one rank: exact each time."""
    apart = run.but(hosts=(0, 1))
    calm = weights_of(start(apart.but(url=run.url + "-calm")))
    assert start(apart.but(kill_at=20)) == [None, None]
    resumed = start(apart.but(hosts=(2, 3)))
    assert [one["start"] for one in resumed] == [17, 17]
    assert all(map(torch.equal, calm, weights_of(resumed)))


def test_another_host_numbers_its_snapshots_after_those_in_the_store(run: Run) -> None:
    """Otherwise the snapshots of the first host would stay the newest, and be used again."""
    assert start(run.but(kill_at=20)) == [None, None]
    assert snapshots_in(run.url) == ["1-step9", "2-step17"]
    start(run.but(hosts=(1, 1), every=2))
    numbers = [int(home.split("-")[0]) for home in snapshots_in(run.url)]
    steps = [int(home.partition("step")[2]) for home in snapshots_in(run.url)]
    assert len(set(numbers)) == len(numbers)
    assert steps == sorted(steps)
    assert steps[-1] > 17


@pytest.mark.parametrize(("size", "after"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_resumes_from_the_store(run: Run, size: int, after: int) -> None:
    half = STEPS[size] * 5 // 6
    assert start(run.but(kill_at=half), size) == [None] * size
    resumed = start(run.but(hosts=(1, 2)), after)
    begun = resumed[0]["start"]
    assert 0 < begun <= half
    used = sorted(index for one in resumed for index in one["seen"])
    left = 96 - 2 * size * begun
    assert len(used) == left
    assert len(set(used)) == left


def test_a_run_is_continued_from_another_url(run: Run) -> None:
    assert start(run.but(kill_at=20)) == [None, None]
    resumed = start(run.but(url=run.url + "-second", resume=run.url, hosts=(1, 2)))
    assert [one["start"] for one in resumed] == [17, 17]


def test_torch_alone_reads_a_snapshot_from_the_store(run: Run) -> None:
    """With its own reader of DCP files on fsspec: the tensors of the state, by their names."""
    reading: Any = pytest.importorskip("torch.distributed.checkpoint._fsspec_filesystem")
    assert start(run.but(kill_at=20, hosts=(0, 1))) == [None, None]
    home = f"snapshots/{snapshots_in(run.url)[-1]}/dcp"
    assert home == "snapshots/2-step17/dcp"
    reader = reading.FsspecReader(f"{run.url}/{home}")
    metadata = reader.read_metadata().state_dict_metadata
    found = {
        name: torch.zeros(about.size, dtype=about.properties.dtype)
        for name, about in metadata.items()
        if "/" in name
    }
    load_dcp(found, storage_reader=reader, no_dist=True)
    weights = [tensor for name, tensor in found.items() if name.startswith("models/0/state/")]
    assert [tuple(tensor.shape) for tensor in weights] == [(8, 4), (8,), (1, 8), (1,)]
    assert found["optimizers/0/state/0/step"] == 17
    resumed = start(run.but(hosts=(2, 3)))
    assert resumed[0]["start"] == 17
    assert all(map(torch.equal, resumed[0]["begin"], weights))


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
def test_killed_during_the_upload_of_a_snapshot(run: Run, name: str) -> None:
    assert start(run.but(kill_in_upload=name, hosts=(0, 1)))[0] is None
    resumed = start(run.but(hosts=(2, 3)))
    assert [one["start"] for one in resumed] == [9, 9]


def test_a_run_that_was_deleted_in_the_store_does_not_come_back(run: Run) -> None:
    assert start(run.but(kill_at=20)) == [None, None]
    store, root = remote_run.open_store(run.url)
    store.rm(root, recursive=True)
    again = start(run)
    assert [one["start"] for one in again] == [0, 0]


def test_a_store_that_cannot_be_read_is_refused_on_every_rank(run: Run) -> None:
    found = run_ranks(train_unreadable, 2, run)
    assert "nowhere" in found[1]
    assert "another rank cannot use the run directory" in found[0]


def train_unreadable(rank: int, run: Run) -> str:
    try:
        train(rank, run.but(url="nowhere://a/b" if rank else run.url))
    except HeadwayError as error:
        return str(error)
    return ""
