"""The lines of a file that is looked at again and again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from headway.rundir.run_files import SETTLED_SECONDS, FileTail, open_regular_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def write(path: Path, text: str, *, age: float = 0.0) -> None:
    """Write it over, as if that had been some time ago."""
    path.write_text(text)
    then = path.stat().st_mtime_ns - int(age * 1e9)
    os.utime(path, ns=(then, then))


def lines(tail: FileTail) -> list[bytes]:
    piece = tail.read()
    return [] if piece is None else piece.lines


def test_a_file_that_rests_is_not_opened_again(path: Path) -> None:
    count = 0

    def opener(path: Path) -> BinaryIO:
        nonlocal count
        count += 1
        return open_regular_file(path)

    write(path, "a\nb\nhal", age=10 * SETTLED_SECONDS)
    tail = FileTail(path, opener)
    assert lines(tail) == [b"a", b"b"]
    assert [tail.read() for _ in range(5)] == [None] * 5
    assert count == 2
    with open(path, "a", encoding="utf-8") as file:
        file.write("f\n")
    assert lines(tail) == [b"half"]


def test_another_file_of_the_same_size_is_noticed(path: Path) -> None:
    write(path, "a\nb\n", age=10 * SETTLED_SECONDS)
    tail = FileTail(path)
    assert lines(tail) == [b"a", b"b"]
    assert tail.read() is None
    write(path, "c\nd\n")
    assert lines(tail) == [b"c", b"d"]
    assert tail.renewed == 1


def test_a_write_right_after_another_may_bear_the_same_time(path: Path) -> None:
    write(path, "a\nb\n")
    then = path.stat().st_mtime_ns
    tail = FileTail(path)
    assert lines(tail) == [b"a", b"b"]
    assert tail.read() is None
    write(path, "c\nd\n")
    os.utime(path, ns=(then, then))
    assert lines(tail) == [b"c", b"d"]


def test_a_file_that_goes_and_comes_back(path: Path) -> None:
    write(path, "a\n", age=10 * SETTLED_SECONDS)
    tail = FileTail(path)
    assert lines(tail) == [b"a"]
    assert tail.read() is None
    path.unlink()
    assert tail.read() is None
    write(path, "b\n")
    assert lines(tail) == [b"b"]
