"""Archives, folders and paths that hide something are spoken of; ordinary ones are not."""

from __future__ import annotations

import os
import pickle
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import hostile_files, ordinary_checkpoints

from headway.cli.main import cli
from headway.core.findings import Severity
from headway.errors import UnreadableInput
from headway.postmortem.scan import scan


@contextmanager
def nothing_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield
    assert os.listdir(here) == []


def answer(path: Path) -> tuple[set[str], set[str]]:
    """(codes of findings, verdicts); the verdict is `refused` where nothing was judged."""
    try:
        report = scan(path)
    except UnreadableInput:
        return set(), {"refused"}
    codes = {item.code for item in report.findings}
    return codes, {item["verdict"] for item in report.sources}


SLOW = re.compile("cost|large object|too long a line")


def names_of(cases: Iterable[str]) -> list[Any]:
    """Those that take seconds are slow."""
    marked = ((name, [pytest.mark.slow] if SLOW.search(name) else []) for name in cases)
    return [pytest.param(name, marks=marks) for name, marks in marked]


@pytest.mark.parametrize("name", names_of(hostile_files.FILES))
def test_a_hostile_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, content = hostile_files.FILES[name]
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    for folder in (alone, beside):
        folder.mkdir()
        (folder / file).write_bytes(content())
    hostile_files._good(beside)
    with nothing_runs(tmp_path, monkeypatch):
        _, verdicts = answer(alone / file)
        assert verdicts
        assert "clean" not in verdicts
        codes, _ = answer(beside)
        assert codes & {"HD702", "HD703"}, "it is passed over in silence beside a good checkpoint"
        if name not in hostile_files.NO_PICKLE:
            result = CliRunner().invoke(cli, ["scan", str(alone)])
            assert result.exit_code in (1, 2)
            assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("name", names_of(hostile_files.FOLDERS))
def test_a_hostile_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    hostile_files.FOLDERS[name](folder)
    with nothing_runs(tmp_path, monkeypatch):
        result = CliRunner().invoke(cli, ["scan", str(folder)])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.exit_code in (1, 2)
        assert "\x1b[2J" not in result.output
        assert "\x1b[1m." not in result.output


@pytest.mark.parametrize("name", hostile_files.SPECIAL_PATHS)
def test_a_special_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    hostile_files.SPECIAL_PATHS[name](folder)
    with nothing_runs(tmp_path, monkeypatch):
        _, verdicts = answer(folder)
        assert verdicts == {"clean"}


@pytest.mark.parametrize("path", hostile_files.DEVICES)
def test_a_device_is_refused(path: str) -> None:
    result = CliRunner().invoke(cli, ["scan", path])
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) <= 3


@pytest.mark.parametrize("name", ordinary_checkpoints.ORDINARY)
def test_an_ordinary_checkpoint(name: str, tmp_path: Path) -> None:
    for path in ordinary_checkpoints.write(tmp_path, name):
        errors = [item for item in scan(path).findings if item.severity is Severity.ERROR]
        assert not errors, (path.name, errors)


def test_padding_after_a_pickle_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    trap = b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00touch mark\x85R."
    good = pickle.dumps({"w": np.ones(2)})
    path.write_bytes(good + bytes(100_000) + trap)
    assert scan(path).findings[0].code == "HD703"
    path.write_bytes(good + bytes(100_000))
    assert scan(path).findings == []


@pytest.mark.parametrize(
    ("name", "head", "what"),
    [
        ("m.onnx", b"\x08\x08\x12\x07pytorch", "an ONNX model"),
        ("m.tflite", b"\x1c\0\0\0TFL3", "a TensorFlow Lite model"),
        ("m.msgpack", b"\x81\xa6params\x80", "a msgpack file"),
        ("m.joblib", zlib.compress(b"\x80\x04N."), "compressed with zlib, as joblib does it"),
    ],
)
def test_a_format_that_is_not_read_is_named(
    name: str, head: bytes, what: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(head)
    with pytest.raises(UnreadableInput, match=what):
        scan(tmp_path / name)
