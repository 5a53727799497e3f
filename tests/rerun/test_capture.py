"""What of the data is on disk once a step went bad: nothing, the guilty rows, or the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway import Guard, Policy, Snapshots
from headway.explain.incident_file import incident_folder
from headway.guard.script.script_guard import replay_call

ROWS, GUILTY = 8, 5
HIGHEST = 7
"""The row that holds the end of the range, which an explanation tells."""


def secret(row: int) -> float:
    """A number that stands in one row only, and nowhere else by accident."""
    return 0.0 if row == GUILTY else 1.2345678 + row * 0.1234567


def private_batch() -> dict[str, Any]:
    values = torch.tensor([[secret(row)] * 3 for row in range(ROWS)])
    return {"x": values, "names": [f"patient-{row:04}" for row in range(ROWS)]}


def healthy_batch(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.rand(ROWS, 3, generator=generator) + 0.5, "names": ["nobody"] * ROWS}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_of(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return (model(batch["x"].log()) ** 2).mean()


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Train with a capture; (the incident's folder, every byte of the run directory)."""

    def train(capture: str) -> tuple[Path, bytes]:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run_dir = tmp_path / capture
        data = [healthy_batch(at) for at in range(6)]
        data[4] = private_batch()
        policy = Policy(capture=capture)
        with Guard(
            model, optimizer, run_dir=run_dir, policy=policy, snapshots=Snapshots(on_disk=0)
        ) as guard:
            for batch in guard(data):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
        [folder] = (run_dir / "incidents").iterdir()
        assert not (run_dir / "snapshots").exists()
        files = [path for path in run_dir.rglob("*") if path.is_file()]
        return folder, b"\0".join(path.read_bytes() for path in files)

    return train


def told_rows(content: bytes) -> set[int]:
    """The rows whose number stands in it: as bytes of any float, or in digits."""
    found = set()
    for row in range(ROWS):
        if row == GUILTY:
            continue
        value = torch.tensor(secret(row))
        forms = [value.to(kind).numpy().tobytes() for kind in (torch.float32, torch.float64)]
        forms += [f"{secret(row):.5g}".encode(), f"{float(value):.9g}"[:7].encode()]
        if any(form in content for form in forms):
            found.add(row)
    return found


def told_names(content: bytes) -> set[int]:
    return {row for row in range(ROWS) if f"patient-{row:04}".encode() in content}


def test_off_keeps_the_data_off_the_disk(written: Any) -> None:
    folder, content = written("off")
    assert not (folder / "batch.pt").exists()
    assert told_names(content) == set()
    # The op's operands are told by their range: its upper end is the only number of the batch.
    assert told_rows(content) == {HIGHEST}
    found = incident_folder.read_incident(folder)
    assert not found.has_batch
    assert found.explanation.origin is not None
    assert found.explanation.origin.rows == (GUILTY,)
    assert "private: capture is off" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_guilty_rows_keep_no_others(written: Any) -> None:
    folder, content = written("guilty-rows")
    assert told_names(content) == {GUILTY}
    assert told_rows(content) == {HIGHEST}
    found = incident_folder.read_incident(folder)
    [batch] = found.batches()
    assert batch["names"] == [f"patient-{GUILTY:04}"] * ROWS
    again = replay_call(found, lambda: (make_model(), loss_of))
    assert again.reproduces
    assert again.explanation is not None
    assert again.explanation.origins[0].rows == (GUILTY,)


def test_the_batch_is_the_batch(written: Any) -> None:
    folder, content = written("batch")
    assert told_names(content) == set(range(ROWS))
    assert told_rows(content) == set(range(ROWS)) - {GUILTY}
    [batch] = incident_folder.read_incident(folder).batches()
    assert torch.equal(batch["x"], private_batch()["x"])
