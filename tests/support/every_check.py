"""One test for all checks: it goes through every one of them and tells all that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from headway import registry


def for_every_check(test: Callable[..., None]) -> Callable[..., None]:
    """Call `test(check, ...)` with each check; what else it asks for are fixtures.

    A check that cannot be imported is among those that fail, and does not hide the others.
    """
    asked = inspect.signature(test)

    @functools.wraps(test)
    def all_of_them(**fixtures: Any) -> None:
        failed = []
        for code in registry.modules():
            try:
                test(check=registry.get(code), **fixtures)
            except Exception as error:
                failed.append(f"{code}: {type(error).__name__}: {error}")
        assert not failed, "\n".join(failed)

    others = [value for name, value in asked.parameters.items() if name != "check"]
    all_of_them.__signature__ = asked.replace(parameters=others)  # type: ignore[attr-defined]
    return all_of_them
