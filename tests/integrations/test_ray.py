"""A real Ray Train worker under the guard. Needs `pip install 'headway[ray]'`: half a gigabyte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.train")

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import headway

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


def test_a_worker_that_dies_is_started_again_and_ends_as_if_it_had_not(
    tmp_path: Path, cluster: None
) -> None:
    def train_loop_per_worker(config: dict[str, Any]) -> None:
        import os
        import signal

        import torch

        import headway.integrations.ray as adapter

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Dropout(0.1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        rows = torch.utils.data.TensorDataset(torch.randn(80, 6))
        loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
        folder = Path(config["folder"])
        plan = headway.Snapshots(every=5, disk_share=1.0)
        with adapter.guard(model, optimizer, snapshots=plan) as guard:
            resumed = guard.resume()
            with (folder / "lives.txt").open("a") as lives:
                lives.write(f"{resumed}\n")
            for (x,) in guard(loader):
                if guard.step == config["die_at"] and not resumed:
                    os.kill(os.getpid(), signal.SIGKILL)
                (model(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.save([model.state_dict(), torch.randn(3)], folder / "result.pt")

    results = []
    for name, die_at in (("whole", None), ("killed", 17)):
        (tmp_path / name).mkdir()
        TorchTrainer(
            train_loop_per_worker,
            train_loop_config={"folder": str(tmp_path / name), "die_at": die_at},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                name=f"run-{name}",
                storage_path=str(tmp_path),
                failure_config=FailureConfig(max_failures=1),
            ),
        ).fit()
        results.append(torch.load(tmp_path / name / "result.pt"))
    lives = (tmp_path / "killed" / "lives.txt").read_text().split()
    assert lives[0] == "0"
    assert int(lives[1]) in (10, 15)  # killed while the last snapshot may have been on its way
    (weights, drawn), (again, redrawn) = results
    assert torch.equal(drawn, redrawn)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
