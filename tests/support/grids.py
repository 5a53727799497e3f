"""Large parametrisations of which `make test` runs a part and `make test-nightly` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every_nth(
    values: Iterable[Any], n: int, mark: pytest.MarkDecorator = pytest.mark.nightly
) -> list[Any]:
    """All values; those between every n-th are marked, as nightly unless told otherwise."""
    return [value if at % n == 0 else marked(value, mark) for at, value in enumerate(values)]


def all_but(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values; those that are not among the quick ones are marked nightly."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, f"not in the grid: {missing}"
    return [value if value in quick else marked(value, pytest.mark.nightly) for value in values]


def marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    """One value, or one tuple of arguments, with this mark."""
    arguments = value if isinstance(value, tuple) else (value,)
    return pytest.param(*arguments, marks=mark)
