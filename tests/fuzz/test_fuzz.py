"""Every reader, on files that are wrong in every way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.long_runs import length

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run import PEAK_MEGABYTES, fuzz  # type: ignore[import-not-found]

CHECKPOINT_FORMATS = 12


def fuzzed(count: int, seed: int, kept: Path) -> None:
    found = fuzz(count, seed=seed, deep=100, kept=kept)
    assert not found["wrong"], found["wrong"][0]["said"]
    assert found["inputs"] == count
    assert found["peak_megabytes"] < PEAK_MEGABYTES
    assert not found["torch_imported"]
    from headway.logs.readers import readers

    logs = {reader.format for reader in readers()}
    assert logs <= found["counts"].keys(), "a reader without a seed"
    assert len(found["counts"]) == len(logs) + CHECKPOINT_FORMATS


@pytest.mark.slow
def test_no_reader_does_anything_but_read_or_refuse(tmp_path: Path) -> None:
    fuzzed(400, 1, tmp_path)


@pytest.mark.slow
def test_a_thousand_files(tmp_path: Path) -> None:
    fuzzed(1_000, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_the_same_at_length(tmp_path: Path) -> None:
    fuzzed(length(16_000), 2, tmp_path)
