"""Whose line it is: the user's, or a package's, wherever that was installed."""

from __future__ import annotations

import _thread
import queue
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.torch_adapters import frames
from headway.torch_adapters.frames import Location, find_user_location
from headway.torch_adapters.op_recording.op_frames import (
    FrameContext,
    RawFrames,
    read_frame_context,
    read_raw_frames,
)


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    for known in (frames._installed, frames.is_installed_file, frames.is_internal_file):
        known.cache_clear()
    yield
    for known in (frames._installed, frames.is_installed_file, frames.is_internal_file):
        known.cache_clear()


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_a_package_of_an_environment_below_is_installed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below" / "lib" / name
    monkeypatch.setattr(sys, "path", [*sys.path, str(below)])
    trainer = Location(str(below / "framework" / "trainer.py"), 1323, "create_optimizer")
    script = Location(str(tmp_path / "train.py"), 94, "main")
    assert find_user_location([trainer, script]) == script
    assert find_user_location([trainer]) == trainer


def test_a_folder_of_the_users_on_the_path_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    mine = Location(str(tmp_path / "losses.py"), 3, "loss")
    assert find_user_location([mine, Location("/elsewhere/train.py", 1)]) == mine


def test_generated_code_that_headway_calls_is_not_the_users() -> None:
    generated = Location("<string>", 9, "__init__")
    ours = Location(frames.__file__, 20, "observe")
    script = Location("/elsewhere/train.py", 94, "main")
    assert find_user_location([generated, ours, script]) == script
    command = [generated, Location("<string>", 3, "<module>")]  # python -c
    assert find_user_location(command) == generated


def test_a_thread_whose_first_frame_is_headways_has_no_line() -> None:
    """As in the thread in which the engine runs the backward pass of a GPU."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    _thread.start_new_thread(
        lambda: answers.put((read_frame_context(4, in_backward=True), read_raw_frames(3))), ()
    )
    assert answers.get(timeout=20) == (FrameContext(), RawFrames(None))
