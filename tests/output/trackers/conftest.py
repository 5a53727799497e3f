"""One thread for torch, and the warnings of other people's packages are theirs to mend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("trackers"):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True, scope="session")
def _single_threaded() -> Iterator[None]:
    trainings = pytest.importorskip("support.trainings")
    with trainings.one_thread():
        yield
