"""HD601 to HD605 on real trainings by several processes: each sick one has healthy twins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway import registry
from headway.core.codec import from_json
from headway.core.findings import Finding
from headway.core.records import Record
from headway.engine import Engine

SCRIPT = Path(__file__).parents[1] / "support" / "gloo_trainings.py"
WORLD = 3
CHECKS = ("HD601", "HD602", "HD603", "HD604", "HD605")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    folder = tmp_path_factory.mktemp("gloo")
    rest = [str(WORLD), str(folder / "meeting"), str(folder / "records")]
    ranks = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(rank), *rest], stderr=subprocess.PIPE)
        for rank in range(WORLD)
    ]
    try:
        said = [rank.communicate(timeout=240)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * WORLD, "".join(said)
    lines = (folder / "records").read_text(encoding="utf-8").splitlines()
    return {name: [from_json(item) for item in items] for name, items in map(json.loads, lines)}


def found(records: list[Record]) -> dict[str, Finding]:
    engine = Engine(checks=[registry.get(code)() for code in CHECKS], strict=True)
    findings = engine.run(records)
    assert engine.not_run() == []
    assert len({finding.code for finding in findings}) == len(findings)
    return {finding.code: finding for finding in findings}


@pytest.mark.parametrize("name", ["healthy", "one fixed batch", "turns at being late"])
def test_nothing_is_found_in_a_healthy_training(
    trainings: dict[str, list[Record]], name: str
) -> None:
    assert found(trainings[name]) == {}


def test_ranks_without_a_sampler_read_the_same(trainings: dict[str, list[Record]]) -> None:
    told = found(trainings["no sampler"])
    assert set(told) == {"HD603"}
    assert told["HD603"].evidence["sharing"] == [0, 1, 2]


def test_a_forward_around_the_wrapper_reduces_nothing(trainings: dict[str, list[Record]]) -> None:
    told = found(trainings["around the wrapper"])
    assert set(told) == {"HD601", "HD605"}
    assert told["HD601"].evidence["versions"] == WORLD
    assert told["HD601"].evidence["last_equal_step"] == 0


def test_the_replica_in_which_a_bit_flipped_is_named(trainings: dict[str, list[Record]]) -> None:
    told = found(trainings["a bit flips"])
    assert set(told) == {"HD601"}
    assert told["HD601"].where.rank == 2
    assert (told["HD601"].evidence["last_equal_step"], told["HD601"].step) == (40, 60)


def test_the_rank_with_the_poisoned_batch_is_named(trainings: dict[str, list[Record]]) -> None:
    told = found(trainings["a poisoned batch"])
    assert set(told) == {"HD602"}
    assert (told["HD602"].where.rank, told["HD602"].step) == (1, 70)
    assert "its loss is NaN" in told["HD602"].message


def test_the_rank_that_is_late_is_named(trainings: dict[str, list[Record]]) -> None:
    told = found(trainings["a straggler"])
    assert set(told) == {"HD604"}
    assert told["HD604"].where.rank == 1


def test_ranks_that_clip_their_own_part_are_told(trainings: dict[str, list[Record]]) -> None:
    told = found(trainings["each clips its own part"])
    assert "HD605" in told
    assert told["HD605"].step == 20
