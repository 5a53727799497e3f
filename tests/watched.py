"""Trainings under a guard for the tests of the checks: run one to its end, and ask what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from trainings import squared_error

from holdfast import Finding, Guard, Severity


def watched(
    model: nn.Module,
    optimizer: Any,
    data: Iterable[Any],
    loss_of: Callable[[Any, Any], Tensor] = squared_error,
    *,
    each: Callable[[int], None] | None = None,
    **options: Any,
) -> Guard:
    """The plain loop under a guard that is closed at the end; `each` is called after every step."""
    with Guard(model, optimizer, **options) as guard:
        for number, batch in enumerate(guard(data)):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if each is not None:
                each(number)
    return guard


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
