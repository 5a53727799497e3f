"""Trainings under a guard for the tests of the checks: run one to its end, ask what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from torch import Tensor, nn

from headway import Finding, Guard, Severity, TrainingHalted
from support.trainings import skip_or_halt, squared_error

Loss = Callable[[Any, Any], Tensor]
Each = Callable[[int], None]


def watched(
    model: nn.Module,
    optimizer: Any,
    data: Iterable[Any],
    loss_of: Loss = squared_error,
    *,
    each: Each | None = None,
    **options: Any,
) -> Guard:
    """The plain loop under a guard that is closed at the end; `each` is called after every step."""
    with Guard(model, optimizer, **options) as guard:
        _loop(guard, model, optimizer, data, loss_of, each)
    return guard


def until_halted(
    model: nn.Module,
    optimizer: Any,
    data: Iterable[Any],
    *,
    because: str,
    each: Each | None = None,
) -> Guard:
    """The plain loop under a guard that must end it, for a reason that matches."""
    with (
        Guard(model, optimizer, policy=skip_or_halt()) as guard,
        pytest.raises(TrainingHalted, match=because),
    ):
        _loop(guard, model, optimizer, data, squared_error, each)
    return guard


def _loop(
    guard: Guard,
    model: nn.Module,
    optimizer: Any,
    data: Iterable[Any],
    loss_of: Loss,
    each: Each | None,
) -> None:
    for number, batch in enumerate(guard(data)):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if each is not None:
            each(number)


def loud(guard: Guard) -> list[Finding]:
    """What a user would be told: everything at warning or above."""
    return [finding for finding in guard.findings if finding.severity >= Severity.WARNING]


def loud_codes(guard: Guard) -> set[str]:
    return {finding.code for finding in loud(guard)}


def the(guard: Guard, code: str) -> Finding:
    """The one finding of a check; there must be exactly one."""
    found = [finding for finding in guard.findings if finding.code == code]
    assert len(found) == 1, f"{len(found)} findings of {code} among {guard.findings}"
    assert found[0].remedies, "a finding says what to do"
    return found[0]
