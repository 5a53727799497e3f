"""`Policy(on_bad_sample="skip")`: a sample whose loading raises is left out, its batch is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import events_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from headway import Guard, Policy, Snapshots


class Broken(Dataset[Tensor]):
    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        if index in self.bad:
            raise ValueError(f"cannot read image {index}")  # the line of the finding
        return torch.full((3,), float(index))


LINE = Broken.__getitem__.__code__.co_firstlineno + 2


def train(data: Any, tmp_path: Path | None = None, policy: str = "skip", **how: Any) -> Any:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=4, **how)
    seen = []
    with Guard(model, optimizer, run_dir=tmp_path, policy=Policy(on_bad_sample=policy)) as guard:
        for batch in guard(loader):
            seen.append([int(row[0]) for row in batch])
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_of_the_batch_is_used(tmp_path: Path, workers: int) -> None:
    seen = train(Broken(5, 6), tmp_path, num_workers=workers)
    assert seen == [[0, 1, 2, 3], [4, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    events = events_of(tmp_path, "loader-failed")
    assert [event.data["sample"] for event in events] == [5, 6]
    assert all(event.data["survived"] for event in events)
    assert events[0].data["place"]["line"] == LINE
    assert events[0].data["error"] == "ValueError: cannot read image 5"


def test_a_batch_without_a_good_sample_is_left_out() -> None:
    assert train(Broken(4, 5, 6, 7)) == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_without_the_option_it_raises() -> None:
    with pytest.raises(ValueError, match="cannot read image 5"):
        train(Broken(5), policy="stop")


def test_an_error_outside_of_samples_raises() -> None:
    def collate(samples: list[Tensor]) -> Tensor:
        raise RuntimeError("collate is broken")

    with pytest.raises(RuntimeError, match="collate is broken"):
        train(Broken(), collate_fn=collate)


def test_a_healthy_run_is_not_changed() -> None:
    assert train(Broken(), policy="skip") == train(Broken(), policy="stop")


def test_a_resumed_run_passes_the_bad_samples(tmp_path: Path) -> None:
    """Batches before the position are drawn again, and the bad one among them raises again."""

    def part(stop: int) -> list[list[int]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        policy = Policy(on_bad_sample="skip")
        snapshots = Snapshots(every=1, disk_share=1.0)
        guard = Guard(model, optimizer, run_dir=tmp_path, policy=policy, snapshots=snapshots)
        guard.resume()
        seen = []
        for batch in guard(DataLoader(Broken(5), batch_size=4)):
            if len(seen) == stop:
                break
            seen.append([int(row[0]) for row in batch])
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        guard.close()
        return seen

    assert part(2) == [[0, 1, 2, 3], [4, 6, 7]]
    assert part(9) == [[8, 9, 10, 11], [12, 13, 14, 15]]
