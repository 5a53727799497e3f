"""Mistakes of the user's: told in one sentence, and training goes on wherever it can."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import events_of, steps_of
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import nn
from torch.amp.grad_scaler import GradScaler

from headway import Guard
from headway.errors import HeadwayError, LossNotScalar, SettingsError, UsageError


def make() -> tuple[Any, torch.optim.Optimizer]:
    model = make_net()
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        squared_error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [message for message in caplog.messages if text in message]


# Wrong arguments.


@pytest.mark.parametrize(
    ("model", "named"),
    [(None, "NoneType"), ("net", "str"), (make_net().state_dict(), "OrderedDict"), ([3], "int")],
)
def test_a_model_of_the_wrong_type_is_named(model: Any, named: str) -> None:
    optimizer = make()[1]
    with pytest.raises(UsageError, match=f"model.*{named}.*Module"):
        Guard(model, optimizer)


@pytest.mark.parametrize(("optimizer", "named"), [(None, "NoneType"), (torch.optim.SGD, "type")])
def test_an_optimizer_of_the_wrong_type_is_named(optimizer: Any, named: str) -> None:
    with pytest.raises(UsageError, match=f"optimizer.*{named}.*Optimizer"):
        Guard(make_net(), optimizer)


def test_model_and_optimizer_the_wrong_way_round() -> None:
    model, optimizer = make()
    with pytest.raises(UsageError, match="got SGD"):
        Guard(optimizer, model)  # type: ignore[arg-type]


def test_empty_lists() -> None:
    model, optimizer = make()
    with pytest.raises(UsageError, match="at least one model"):
        Guard([], optimizer)
    with pytest.raises(UsageError, match="at least one optimizer"):
        Guard(model, [])


@pytest.mark.parametrize("max_norm", [0, 0.0, -1.0, math.nan])
def test_a_limit_that_is_not_positive(max_norm: float) -> None:
    with pytest.raises(UsageError, match=f"max_norm.*positive.*{max_norm}"):
        Guard(*make(), max_norm=max_norm)


def test_a_refused_guard_leaves_torch_and_the_optimizer_alone() -> None:
    model, optimizer = make()
    before = torch.autograd.backward
    with pytest.raises(UsageError):
        Guard(model, optimizer, max_norm=-1)
    assert torch.autograd.backward is before
    assert not optimizer._optimizer_step_pre_hooks


def test_an_unknown_setting_of_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.headway.policy]\nskips_in_a_raw = 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="skips_in_a_raw"):
        Guard(*make())


# Wrong losses.


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (torch.ones(3, requires_grad=True), r"shape \(3,\).*loss\.mean\(\)"),
        (torch.ones(0, requires_grad=True), r"shape \(0,\)"),
        (1.5, "got 1.5"),
        (None, "got None"),
    ],
)
def test_a_loss_that_is_not_one_number(loss: Any, text: str) -> None:
    with Guard(*make()) as guard, pytest.raises(LossNotScalar, match=text):
        guard.backward(loss)


def test_a_loss_of_one_element_is_fine() -> None:
    model, optimizer = make()
    with Guard(model, optimizer) as guard:
        guard.backward(squared_error(model, batches(1)[0]).reshape(1, 1))
        optimizer.step()


def test_a_component_that_is_not_one_number_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(3)):
            loss = squared_error(model, batch)
            guard.backward(loss, rows=torch.ones(4), half=loss / 2, weight=0.5)
            optimizer.step()
            optimizer.zero_grad()
    (message,) = said(caplog, "'rows'")
    assert "(4,)" in message
    for step in steps_of(tmp_path):
        assert "loss/rows" not in step.values
        assert step.values["loss/half"] == pytest.approx(step.values["loss"] / 2)
        assert step.values["loss/weight"] == 0.5


@pytest.mark.parametrize("component", [None, "high", {"a": 1}, object()])
def test_a_component_that_is_no_number_at_all(
    component: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    with Guard(model, optimizer) as guard:
        for batch in guard(batches(3)):
            guard.backward(squared_error(model, batch), odd=component)
            optimizer.step()
            optimizer.zero_grad()
    assert len(said(caplog, "'odd'")) == 1


# Steps without gradients.


def test_a_step_without_backward_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = make()
    before = state_of(model, optimizer)
    with Guard(model, optimizer) as guard:
        for _ in guard(batches(5)):
            optimizer.step()
        assert guard.actions == []
    assert len(said(caplog, "no parameter has a gradient")) == 1
    assert_same(before, state_of(model, optimizer))


def test_a_forgotten_backward_in_between_does_no_harm(tmp_path: Path) -> None:
    model, optimizer = make()
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(6))):
            if number != 3:
                squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(steps_of(tmp_path)) == 5
    assert all("micro_batches" not in step.values for step in steps_of(tmp_path))


def test_an_optimizer_of_frozen_parameters(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = make()
    model.requires_grad_(False)
    with Guard(model, optimizer):
        for _ in range(3):
            optimizer.step()
    assert len(said(caplog, "no parameter has a gradient")) == 1


# A closed guard.


def test_a_closed_guard_lets_training_go_on(caplog: pytest.LogCaptureFixture) -> None:
    (model, optimizer), (clean, clean_optimizer) = make(), make()
    guard = Guard(model, optimizer)
    guard.close()
    guard.close()
    for batch in guard(batches(5)):
        guard.backward(squared_error(model, batch), part=1.0)
        optimizer.step()
        optimizer.zero_grad()
    train(clean, clean_optimizer, batches(5))
    assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer))
    assert len(said(caplog, "after guard.close()")) == 1
    assert guard.findings == []
    assert guard.actions == []


def test_a_guard_closed_within_the_loop(tmp_path: Path) -> None:
    model, optimizer = make()
    guard = Guard(model, optimizer, run_dir=tmp_path)
    for number, batch in enumerate(guard(batches(6))):
        if number == 3:
            guard.close()
        guard.backward(squared_error(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    assert len(steps_of(tmp_path)) == 3
    assert len(events_of(tmp_path, "end")) == 1


@pytest.mark.parametrize("scaled_by", ["guard", "user"])
def test_a_closed_guard_scales_on_as_it_did(scaled_by: str) -> None:
    """Unscaled gradients that a scaler then unscales would be next to nothing."""

    def run(*, guarded: bool) -> dict[str, Any]:
        model, optimizer = make()
        scaler = GradScaler("cpu", init_scale=2.0**10)
        guard = Guard(model, optimizer, scaler=scaler) if guarded else None
        for number, batch in enumerate(batches(8)):
            loss = squared_error(model, batch)
            if guard is None:
                scaler.scale(loss).backward()
            else:
                guard.backward(loss if scaled_by == "guard" else scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number == 3 and guard is not None:
                guard.close()
        return state_of(model, optimizer)

    assert_same(run(guarded=False), run(guarded=True))


def test_an_exception_in_the_loop_is_on_record_and_passed_on(tmp_path: Path) -> None:
    model, optimizer = make()
    guard = Guard(model, optimizer, run_dir=tmp_path)

    def fail() -> None:
        with guard:
            train(model, optimizer, guard(batches(3)))
            raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        fail()
    (event,) = events_of(tmp_path, "crash")
    assert event.data["error"] == "ZeroDivisionError: the user's own"
    assert event.step == 3
    (end,) = events_of(tmp_path, "end")
    assert end.data["steps"] == 3


def test_a_run_without_a_single_step(tmp_path: Path) -> None:
    with Guard(*make(), run_dir=tmp_path):
        pass
    (end,) = events_of(tmp_path, "end")
    assert end.data["steps"] == 0


# Two guards on one optimizer.


def test_a_second_guard_on_an_optimizer_takes_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    first = Guard(model, optimizer, run_dir=tmp_path / "first")
    train(model, optimizer, first(batches(2)))
    second = Guard(model, optimizer, run_dir=tmp_path / "second")
    train(model, optimizer, second(batches(3)))
    first.close()
    train(model, optimizer, second(batches(1)))
    second.close()
    assert len(said(caplog, "already had a guard")) == 1
    assert len(steps_of(tmp_path / "first")) == 2
    assert len(steps_of(tmp_path / "second")) == 4


# A run directory that cannot be written.


def a_file(path: Path) -> Path:
    path.write_text("not a directory")
    return path


def below_a_file(path: Path) -> Path:
    return a_file(path) / "run"


def forbidden(path: Path) -> Path:
    return Path("/proc/headway-cannot-be-here")


@pytest.mark.parametrize("place", [a_file, below_a_file, forbidden])
def test_a_run_directory_that_cannot_be_made_is_told_once(
    place: Callable[[Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    run_dir = place(tmp_path / "run")
    with Guard(model, optimizer, run_dir=run_dir) as guard:
        assert guard.run_dir is None
        for number, batch in enumerate(guard(batches(12))):
            (squared_error(model, batch) * (math.nan if number == 7 else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    (message,) = said(caplog, "cannot write")
    assert str(run_dir) in message
    assert [action.step for action in guard.actions] == [7]


def test_a_run_directory_deleted_meanwhile_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    run_dir = tmp_path / "run"
    with Guard(model, optimizer, run_dir=run_dir) as guard:
        for number, batch in enumerate(guard(batches(20))):
            if number == 4:
                shutil.rmtree(run_dir)
            (squared_error(model, batch) * (math.nan if number in (5, 9, 13) else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert guard.run_dir is None
    assert len(said(caplog, "cannot write")) == 1
    assert [action.step for action in guard.actions] == [5, 9, 13]


def test_messages_go_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headway"), Guard(*make()) as guard:
        guard._optimizers[0].step()
    assert {record.name for record in caplog.records} == {"headway"}


def test_every_error_of_ours_is_a_headway_error() -> None:
    assert issubclass(UsageError, HeadwayError)
    assert issubclass(LossNotScalar, UsageError)
