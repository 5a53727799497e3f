"""A batch that was bad when it left its loader: the line of the data set that made it so."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, state_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headway import Guard, Policy
from headway.rerun.child_origin import find_in_child
from headway.torch_adapters.process_state.isolated_child import run_isolated

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


class Shares(Dataset[Tensor]):
    """Rows that are divided by their sum; that of row 9 is 0."""

    def __init__(self) -> None:
        self.rows = torch.rand(24, 3) + 0.1
        self.rows[9] = 0.0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        row = self.rows[index]
        return row / row.sum()  # made in a sample


class OnlyOnce(Shares):
    """Another number at every call."""

    def __getitem__(self, index: int) -> Tensor:
        share = super().__getitem__(index)
        if index == 9:
            self.rows[9] = 1.0
        return share


class Lines(IterableDataset[Tensor]):
    """Reads from a file that is open, one line after the other."""

    def __init__(self, path: Path) -> None:
        path.write_text("".join(f"{0 if n == 9 else n + 1}\n" for n in range(24)))
        self.file = path.open("rb", buffering=0)

    def __iter__(self) -> Iterator[Tensor]:
        self.file.seek(0)
        for line in self.file:
            value = torch.tensor([float(line)] * 3)
            yield value / value  # made in a stream
        self.file.close()


class Counts(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for number in range(24):
            value = torch.full((3,), 0.0 if number == 9 else 1.0)
            yield value / value  # made by a worker


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def train(
    data: Any, *, policy: Policy | None = None, workers: int = 0
) -> tuple[Guard, dict[str, Any]]:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    seen = []
    with Guard(net, optimizer, policy=policy or Policy()) as guard:
        for x in guard(DataLoader(data, batch_size=4, num_workers=workers)):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    return guard, {**state_of(net, optimizer), "seen": repr(seen)}


def test_the_line_in_the_data_set_is_named() -> None:
    guard, _ = train(Shares())
    (why,) = guard.explanations
    assert why.origin is not None
    assert why.origin.place is not None
    assert (why.origin.op, why.origin.place.line) == ("div", line_of("made in a sample"))
    assert why.samples == (9,)
    found = next(item for item in guard.findings if item.code == "HD501")
    assert found.where.line == line_of("made in a sample")
    assert why.cure is not None
    assert why.cure.key == "guard-input"
    assert why.cure.edits  # tried on the samples of the batch, in the child


def test_a_stream_is_read_again_from_its_start_and_goes_on_where_it_was(tmp_path: Path) -> None:
    guard, found = train(Lines(tmp_path / "lines"))
    (why,) = guard.explanations
    assert why.origin is not None
    assert why.origin.place is not None
    assert why.origin.place.line == line_of("made in a stream")
    assert_same(found, train(Lines(tmp_path / "lines"), policy=Policy(replay=False))[1])


def test_a_stream_that_a_worker_reads_is_read_again_without_it() -> None:
    guard, _ = train(Counts(), workers=1)
    (why,) = guard.explanations
    assert why.origin is not None
    assert why.origin.place is not None
    assert why.origin.place.line == line_of("made by a worker")
    assert why.cure is not None
    assert why.cure.edits


def test_nothing_is_claimed_of_a_batch_that_does_not_come_again() -> None:
    guard, _ = train(OnlyOnce())
    (why,) = guard.explanations
    assert why.origin is not None
    assert why.origin.place is not None
    assert why.origin.place.line != line_of("made in a sample")


def test_a_child_that_fails_or_hangs_gives_nothing() -> None:
    def fail() -> bytes:
        raise ValueError

    def hang() -> bytes:
        threading.Event().wait()
        return b"never"

    assert run_isolated(lambda: b"x" * 100_000, 20.0) == b"x" * 100_000
    assert run_isolated(fail, 20.0) == b""
    assert run_isolated(hang, 0.2) == b""


def test_a_child_that_gets_little_of_a_busy_machine_is_waited_for() -> None:
    def share() -> bytes:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            sum(range(50_000))
            time.sleep(0.01)
        return b"late"

    assert run_isolated(share, 0.7) == b"late"


def test_a_child_takes_nothing_from_a_pipe_or_a_file(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"for the parent")
    (tmp_path / "text").write_text("0123456789")
    with (tmp_path / "text").open("rb", buffering=0) as file:
        file.read(3)
        assert run_isolated(lambda: os.read(ours, 5) + file.read(4), 20.0) == b"3456"
        assert file.read(4) == b"3456"
    assert os.read(ours, 100) == b"for the parent"
    os.close(ours), os.close(theirs)


@pytest.mark.parametrize("name", ["write", "remove", "rename", "run", "connect"])
def test_a_child_changes_nothing_outside(name: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    attempts: dict[str, Any] = {
        "write": lambda: kept.write_text("other"),
        "remove": kept.unlink,
        "rename": lambda: kept.rename(tmp_path / "other"),
        "run": lambda: os.system("true"),
        "connect": socket.socket,
    }

    def attempt() -> bytes:
        torch.save({}, kept)
        try:
            attempts[name]()
        except PermissionError:
            return b"refused"
        return b"done"

    assert run_isolated(attempt, 20.0) == b"refused"
    assert kept.read_text() == "as it was"


def test_a_batch_that_the_loop_skips_itself_explains_bad_statistics() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer) as guard:
        for x in guard(DataLoader(Shares(), batch_size=4)):
            loss = net(x).square().mean()
            if loss.isfinite():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    found = next(item for item in guard.findings if item.code == "HD302")
    assert found.where.line == line_of("made in a sample")


def test_what_fails_in_the_child_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise ValueError("of the child")

    with caplog.at_level("DEBUG", logger="headway"):
        assert find_in_child(work) is None
    assert "of the child" in caplog.text
