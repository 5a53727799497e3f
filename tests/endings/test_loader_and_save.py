"""A failed loader is named with its sample and line, a failed save with its path."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.paired_trainings import events_of
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader, get_worker_info

from headway.config import Settings
from headway.core.findings import Finding
from headway.guard.guard import Guard
from headway.guard.script.guarded_run import run_guarded

BAD = 21


class Numbers(Dataset[Any]):
    def __init__(self, how: str = "raise") -> None:
        self.how = how

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == BAD and self.how == "raise":
            raise ValueError("unreadable")  # the data set's line
        if index == BAD and self.how == "raise in a worker" and get_worker_info() is not None:
            raise ValueError("unreadable")
        if index == BAD and self.how == "die" and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGBUS)
        return torch.randn(4 + (index == BAD and self.how == "uneven")), 1.0


LINE = Numbers.__getitem__.__code__.co_firstlineno + 2


def train(loader: Any) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, _ in loader:
        model(inputs).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def finding_of(work: Any, code: str, run_dir: Path | None = None) -> Finding:
    done = run_guarded(work, settings=Settings(), run_dir=run_dir)
    assert done.report.verdict == "failed"
    (finding,) = [
        item for item in done.report.findings if item.code.startswith(("HD5", "HD7", "HD9"))
    ]
    assert finding.code == code
    return finding


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "shuffle": True}])
def test_the_sample_and_the_line(options: dict[str, Any]) -> None:
    finding = finding_of(lambda: train(DataLoader(Numbers(), batch_size=8, **options)), "HD514")
    assert finding.where.sample == BAD
    assert (Path(str(finding.where.file)).name, finding.where.line) == (Path(__file__).name, LINE)
    assert "ValueError: unreadable" in finding.message
    assert ("worker" in finding.message) == bool(options)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True, "batch_size": 4}])
def test_a_sample_that_loads_well_the_second_time(options: dict[str, Any]) -> None:
    loader = DataLoader(Numbers("raise in a worker"), **{"batch_size": 8, **options}, num_workers=2)
    finding = finding_of(lambda: train(loader), "HD514")
    assert finding.where.sample == BAD


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="no such signal")
def test_a_worker_that_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Numbers("die"), batch_size=8, num_workers=1)
    finding = finding_of(lambda: train(loader), "HD514")
    assert finding.message == "a DataLoader worker was killed by signal SIGBUS"


def test_a_dead_worker_that_torch_finds_by_itself() -> None:
    """Its message has no signal then; the process has an exit code."""

    class Dead:
        pid, exitcode = 7, -9

    def look(failed_workers: list[Any]) -> None:
        raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")

    code = look.__code__.replace(co_filename=dataloader.__file__, co_name="_try_get_data")
    looks = FunctionType(code, {})

    def work() -> None:
        train(DataLoader(Numbers("fine"), batch_size=8))
        looks([Dead()])

    finding = finding_of(work, "HD514")
    assert finding.message == "a DataLoader worker was killed by signal SIGKILL"


def test_the_death_of_a_worker_is_raised_anywhere() -> None:
    def work() -> None:
        train(DataLoader(Numbers("fine"), batch_size=8))
        # As the handler of SIGCHLD does that torch installs.
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. ")

    finding = finding_of(work, "HD514")
    assert finding.message == "a DataLoader worker was killed by signal SIGBUS"


def test_samples_that_cannot_be_stacked() -> None:
    finding = finding_of(lambda: train(DataLoader(Numbers("uneven"), batch_size=8)), "HD514")
    assert "stack expects each tensor to be equal size" in finding.message


@pytest.mark.slow
def test_a_guarded_loader_knows_the_sample() -> None:
    model = nn.Linear(4, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def work() -> None:
        with guard:
            for inputs, _ in guard(DataLoader(Numbers(), batch_size=8, num_workers=1)):
                model(inputs).mean().backward()

    with pytest.raises(ValueError, match="unreadable"):
        work()
    (finding,) = [item for item in guard.findings if item.code == "HD514"]
    assert finding.where.sample == BAD


def test_a_mistake_in_the_loader_itself_is_a_crash() -> None:
    finding = finding_of(lambda: train(DataLoader(Numbers(), batch_size=-1)), "HD911")
    assert "batch_size" in finding.message


def test_an_exhausted_loader_is_a_crash() -> None:
    def work() -> None:
        train(DataLoader(Numbers("fine"), batch_size=20))
        batches = iter(DataLoader(Numbers("fine"), batch_size=20))
        for _ in range(3):
            next(batches)

    assert finding_of(work, "HD911").where.line == work.__code__.co_firstlineno + 4


def save_and_train(paths: list[str], *, catch: bool = False) -> None:
    train(DataLoader(Numbers("fine"), batch_size=8))
    for path in paths:
        try:
            torch.save({"step": 5}, path)
        except (OSError, RuntimeError):
            if not catch:
                raise
    train(DataLoader(Numbers("fine"), batch_size=8))


@pytest.mark.slow
def test_a_save_that_ends_the_run(tmp_path: Path) -> None:
    good, bad = str(tmp_path / "good.pt"), str(tmp_path / "none" / "bad.pt")
    before = torch.save
    finding = finding_of(lambda: save_and_train([good, bad]), "HD708")
    assert f"the last good one is {good}" in finding.message
    assert finding.where.line == save_and_train.__code__.co_firstlineno + 4
    assert torch.save is before


@pytest.mark.slow
def test_a_save_that_the_script_catches(tmp_path: Path) -> None:
    bad, run = str(tmp_path / "none" / "bad.pt"), tmp_path / "run"
    work = lambda: save_and_train([bad], catch=True)  # noqa: E731
    done = run_guarded(work, settings=Settings(), run_dir=run)
    assert done.report.verdict == "findings"
    assert [item.code for item in done.report.findings] == ["HD708"]
    (event,) = events_of(run, "save-failed")
    assert event.data["path"] == bad
    assert event.data["survived"] is True


def test_good_saves_are_quiet(tmp_path: Path) -> None:
    work = lambda: save_and_train([str(tmp_path / "a.pt")])  # noqa: E731
    report = run_guarded(work, settings=Settings()).report
    assert (report.findings, report.verdict) == ([], "unknown")  # too few steps to judge


def test_a_save_that_succeeds_elsewhere_is_quiet(tmp_path: Path) -> None:
    paths = [str(tmp_path / "none" / "a.pt"), str(tmp_path / "a.pt")]
    work = lambda: save_and_train(paths, catch=True)  # noqa: E731
    report = run_guarded(work, settings=Settings()).report
    assert (report.findings, report.verdict) == ([], "unknown")  # too few steps to judge


def write_opened() -> None:
    with open("/dev/full", "wb") as file:
        torch.save({"step": 5}, file)


def write_from_memory() -> None:
    buffer = io.BytesIO()
    torch.save({"step": 5}, buffer)
    Path("/dev/full").write_bytes(buffer.getvalue())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("write", "line"), [(write_opened, 2), (write_from_memory, 3)])
def test_a_full_disk_under_the_script_s_own_file(write: Any, line: int) -> None:
    def work() -> None:
        train(DataLoader(Numbers("fine"), batch_size=8))
        write()

    finding = finding_of(work, "HD708")
    assert "the disk is full" in finding.message
    assert finding.where.line == write.__code__.co_firstlineno + line


def test_a_checkpoint_that_cannot_be_moved(tmp_path: Path) -> None:
    def work() -> None:
        train(DataLoader(Numbers("fine"), batch_size=8))
        torch.save({"step": 5}, tmp_path / "a.tmp")
        (tmp_path / "a.tmp").rename(tmp_path / "none" / "a.pt")

    assert "the folder does not exist" in finding_of(work, "HD708").message


def save_a_lambda(path: Path, *, catch: bool) -> None:
    train(DataLoader(Numbers("fine"), batch_size=8))
    try:
        torch.save({"transform": lambda x: x}, path)
    except (AttributeError, pickle.PicklingError):
        if not catch:
            raise


def test_an_object_that_cannot_be_pickled(tmp_path: Path) -> None:
    finding = finding_of(lambda: save_a_lambda(tmp_path / "a.pt", catch=False), "HD708")
    assert f"{tmp_path / 'a.pt'} could not be saved: it contains an object" in finding.message
    assert finding.where.line == save_a_lambda.__code__.co_firstlineno + 3
    assert "`state_dict()`" in finding.remedies[0].text


def test_an_object_that_was_only_tried_is_quiet(tmp_path: Path) -> None:
    work = lambda: save_a_lambda(tmp_path / "a.pt", catch=True)  # noqa: E731
    assert run_guarded(work, settings=Settings()).report.findings == []


def test_the_remedy_fits_the_reason(tmp_path: Path) -> None:
    bad = str(tmp_path / "none" / "bad.pt")
    finding = finding_of(lambda: save_and_train([bad]), "HD708")
    assert finding.remedies[0].text.startswith("Create the folder first")


class Rows(Numbers):
    """Loads the samples of a batch itself."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_sample_of_a_data_set_that_loads_whole_batches(workers: int) -> None:
    finding = finding_of(
        lambda: train(DataLoader(Rows(), batch_size=8, num_workers=workers)), "HD514"
    )
    assert finding.where.sample == BAD


def test_a_checkpoint_that_cannot_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "last.pt" / "shards").mkdir(parents=True)

    def work() -> None:
        train([(torch.randn(8, 4), None)] * 3)
        torch.save({"weight": torch.ones(2)}, tmp_path / "last.part")
        (tmp_path / "last.part").replace(tmp_path / "last.pt")

    finding = finding_of(work, "HD708")
    assert finding.message.startswith(
        f"{tmp_path}/last.pt could not be saved: a folder has this name"
    )
    assert "remove the folder" in finding.remedies[0].text


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_that_cannot_be_written(tmp_path: Path) -> None:
    """Its exception is no `Exception`, and its text says nothing."""
    (tmp_path / "latest").write_text("a file")

    def work() -> None:
        train([(torch.randn(8, 4), None)] * 3)
        dcp.save({"weight": torch.ones(2)}, checkpoint_id=tmp_path / "latest" / "step3")

    finding = finding_of(work, "HD708")
    assert "a part of the path is a file, not a folder" in finding.message
    assert finding.evidence["error"].startswith("NotADirectoryError")
