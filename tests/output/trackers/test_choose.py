"""Which tracker a name or an object stands for; what is said when there is none."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.errors import FrameworkMissing, UsageError
from headway.output.trackers import python_logging, tracker_group
from headway.output.trackers.python_logging import LoggingTracker
from headway.output.trackers.tensorboard import SummaryWriterTracker

NAMES = ("tensorboard", "wandb", "mlflow", "trackio")


class Own:
    def step(self, row: Any) -> None: ...
    def finding(self, finding: Any) -> None: ...
    def close(self) -> None: ...


class Writer:
    def add_scalar(self, *what: Any) -> None: ...
    def add_text(self, *what: Any) -> None: ...
    def flush(self) -> None: ...


def opened(item: Any, run_dir: Path | None = None) -> Any:
    trackers = tracker_group.open_trackers(
        [item], run_dir=run_dir, notify=lambda topic, text: pytest.fail(text)
    )
    (queue,) = trackers.queues
    trackers.close()
    return queue._tracker


@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_not_installed_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [item for item in sys.modules if item.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FrameworkMissing, match=rf"pip install 'headway\[{name}\]'"):
        opened(name)


@pytest.mark.parametrize("item", ["tensorbord", "", 3, object(), Own])
def test_an_unknown_one_is_refused_with_those_that_are_known(item: Any) -> None:
    with pytest.raises(UsageError, match="tensorboard, wandb, mlflow, trackio, logging"):
        opened(item)


def test_objects_are_known_by_what_they_are() -> None:
    assert isinstance(opened(Writer()), SummaryWriterTracker)
    assert isinstance(opened(logging.getLogger("mine")), LoggingTracker)
    own = Own()
    assert opened(own) is own


def test_a_name_may_stand_alone_and_may_have_a_place() -> None:
    told: list[str] = []
    trackers = tracker_group.open_trackers(
        "logging:mine.steps", run_dir=None, notify=lambda topic, text: told.append(text)
    )
    (queue,) = trackers.queues
    assert queue._tracker._logger.name == "mine.steps"
    trackers.close()
    assert not told


def test_one_that_cannot_be_opened_is_left_out_and_no_dice_are_thrown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(about: Any, run_dir: Path | None) -> Any:
        random.random()
        raise OSError("no route\nto host")

    monkeypatch.setattr(python_logging, "opened", fails)
    told: dict[str, str] = {}
    before = random.getstate()
    trackers = tracker_group.open_trackers(["logging"], run_dir=None, notify=told.__setitem__)
    assert random.getstate() == before
    assert not trackers.queues
    assert "cannot be opened (OSError: no route);" in told["tracker-opened-logging"]
