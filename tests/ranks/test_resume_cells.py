"""Killed, damaged, resumed on as many ranks or on others: exact, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.resume_cells import Cell, References, every_cell, judge

SAMPLE = [
    Cell("ddp", "write 1 9"),
    Cell("ddp", "write 0 12"),
    Cell("flat views", "step 6"),
    Cell("zero", "step 6", fault="nan"),
    Cell("pipeline", "part missing"),
    Cell("fsdp", "all"),
    Cell("ddp", "step 5", 2, 4),
    Cell("ddp", "step 5", 4, 4),
    Cell("static graph, powersgd", "step 5", 4, 4),
    Cell("powersgd", "step 6", fault="nan"),
    Cell("fsdp", "step 6", 4, 2),
    Cell("hsdp", "step 6", 4, 2),
    Cell("by hand", "step 6", 1, 2),
    Cell("pipeline", "step 9", 2, 1),
]
"""What `make test-slow` runs of the matrix."""


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("references"))


def ends_as_expected(cell: Cell, references: References, tmp_path: Path) -> None:
    outcome = judge(cell, references, tmp_path)
    assert outcome.partition(":")[0] == cell.expected, outcome


@pytest.mark.slow
def test_ranks_whose_directories_differ_refuse_alike(
    references: References, tmp_path: Path
) -> None:
    ends_as_expected(Cell("ddp", "node local"), references, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.name)
def test_a_sample_of_the_matrix(cell: Cell, references: References, tmp_path: Path) -> None:
    ends_as_expected(cell, references, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", every_cell(), ids=lambda cell: cell.name)
def test_the_whole_matrix(cell: Cell, references: References, tmp_path: Path) -> None:
    ends_as_expected(cell, references, tmp_path)


def test_the_matrix_is_as_large_as_claimed() -> None:
    cells = every_cell()
    assert len({cell.name for cell in cells}) == len(cells) >= 200
    assert sum(cell.moment.startswith("write") for cell in cells) == 100
