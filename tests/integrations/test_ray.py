"""A real Ray Train worker under the guard. Needs `pip install 'headway[ray]'`: half a gigabyte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("ray.train")

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import headway
import headway.integrations.ray as adapter

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_worker_is_guarded_and_its_findings_are_reported(tmp_path: Path, cluster: None) -> None:
    def train_loop_per_worker(config: dict[str, Any]) -> None:
        import torch

        import headway.integrations.ray as adapter

        torch.manual_seed(0)
        model = torch.nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = [torch.randn(8, 6) for _ in range(20)]
        data[12][3, 5] = float("nan")
        with adapter.guard(model, optimizer) as guard:
            for number, x in enumerate(guard(data)):
                loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if number == 19:
                    torch.save(model.state_dict(), f"{config['folder']}/model.pt")
                    adapter.report(
                        guard,
                        {"loss": float(loss.detach())},
                        checkpoint=ray.train.Checkpoint.from_directory(config["folder"]),
                    )

    (tmp_path / "saved").mkdir()
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"folder": str(tmp_path / "saved")},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="guarded", storage_path=str(tmp_path)),
    )
    result = trainer.fit()
    assert result.metrics["loss"] < 5.0
    assert result.metrics["headway_findings"] == ["HD101", "HD201", "HD501"]
    assert result.metrics["headway_skipped"] == 1
    report = headway.diagnose(tmp_path / "guarded" / "headway")
    assert report.causes[0].code == "HD501"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_is_started_again_and_ends_as_if_it_had_not(
    workers: int, tmp_path: Path, cluster: None
) -> None:
    def train_loop_per_worker(config: dict[str, Any]) -> None:
        import os
        import signal

        import torch

        import headway.integrations.ray as adapter

        context = ray.train.get_context()
        rank, workers = context.get_world_rank(), context.get_world_size()
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Dropout(0.1))
        model = ray.train.torch.prepare_model(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        rows = torch.utils.data.TensorDataset(torch.randn(80 * workers, 6))
        sampler = torch.utils.data.DistributedSampler(rows, workers, rank)
        loader = torch.utils.data.DataLoader(rows, batch_size=4, sampler=sampler)
        folder = Path(config["folder"])
        plan = headway.Snapshots(every=5, disk_share=1.0)
        with adapter.guard(model, optimizer, snapshots=plan) as guard:
            resumed = guard.resume()
            with (folder / f"lives{rank}.txt").open("a") as lives:
                lives.write(f"{resumed}\n")
            for (x,) in guard(loader):
                if rank == workers - 1 and guard.step == config["die_at"] and not resumed:
                    os.kill(os.getpid(), signal.SIGKILL)
                (model(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.save([model.state_dict(), torch.randn(3)], folder / f"result{rank}.pt")

    results = []
    for name, die_at in (("whole", None), ("killed", 17)):
        (tmp_path / name).mkdir()
        TorchTrainer(
            train_loop_per_worker,
            train_loop_config={"folder": str(tmp_path / name), "die_at": die_at},
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                name=f"run-{name}",
                storage_path=str(tmp_path),
                failure_config=FailureConfig(max_failures=1),
            ),
        ).fit()
        found = [torch.load(tmp_path / name / f"result{rank}.pt") for rank in range(workers)]
        results.append(found)
    for rank in range(workers):
        lives = (tmp_path / "killed" / f"lives{rank}.txt").read_text().split()
        assert lives[0] == "0"
        # Killed while the last snapshot may have been on its way.
        assert int(lives[1]) in ((10, 15) if workers == 1 else (6, 11, 12, 16))
        (weights, drawn), (again, redrawn) = results[0][rank], results[1][rank]
        assert torch.equal(drawn, redrawn)
        assert all(torch.equal(weights[name], again[name]) for name in weights)


class _Storage(NamedTuple):
    storage_filesystem: Any
    experiment_fs_path: str = "bucket/experiment"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("local", Path("bucket/experiment/headway")),
        ("s3", "s3://bucket/experiment/headway"),
        ("gcs", "gs://bucket/experiment/headway"),
        ("hdfs", Path("headway")),
    ],
)
def test_the_run_is_in_the_storage_of_the_experiment(
    kind: str,
    expected: Path | str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker that is started again elsewhere would not find it in a folder of its own."""
    system = SimpleNamespace(type_name=kind)
    context = SimpleNamespace(get_storage=lambda: _Storage(system))
    monkeypatch.setattr(adapter._train, "get_context", lambda: context)
    assert adapter.run_dir() == expected
    told = "a new worker does not find it" in caplog.text
    assert told == (kind == "hdfs")
