"""HD001 under the real guard: a check that crashes is taken out; training and the others go on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from support.guarded_trainings import loud, loud_codes, the, watched
from support.trainings import Batch, assert_same, batches, make_net, state_of, train
from torch.optim import Adam

from headway import Finding, Severity
from headway.checks.gradients.hd204_missing_gradient import MissingGradient
from headway.core.records import StepRecord

BAD = 40


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From some step on, one of the checks divides by zero."""

    def observe(self: MissingGradient, record: StepRecord) -> Iterable[Finding]:
        yield from ()
        if record.step >= step:
            1 / 0  # noqa: B018

    monkeypatch.setattr(MissingGradient, "observe", observe)


def with_a_nan() -> list[Batch]:
    data = batches(60)
    data[BAD] = (data[BAD][0], data[BAD][1] * torch.nan)
    return data


def test_hd001_a_check_that_raises_is_told_once_and_the_others_work_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash_at(20, monkeypatch)
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), with_a_nan())
    found = the(guard, "HD001")
    assert (found.step, found.severity) == (20, Severity.WARNING)
    assert found.evidence["check"] == "HD204"
    assert "ZeroDivisionError" in found.message
    assert found.where.file == __file__
    assert loud_codes(guard) == {"HD001", "HD101", "HD201", "HD501"}
    assert the(guard, "HD101").step == BAD
    assert [action.step for action in guard.actions] == [BAD]


def test_hd001_leaves_the_training_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, alone = make_net(), None
    alone = Adam(clean.parameters(), lr=1e-2)
    list(train(clean, alone, batches(60)))
    crash_at(20, monkeypatch)
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    watched(model, optimizer, batches(60))
    assert_same(state_of(clean, alone), state_of(model, optimizer))


def test_hd001_quiet_while_no_check_raises() -> None:
    model = make_net()
    assert loud(watched(model, Adam(model.parameters(), lr=1e-2), batches(60))) == []
