"""The README's code is run as it stands: Python blocks in order, and every `$ headway` line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import warm_python

README = Path(__file__).parents[1] / "README.md"
NUMBERS = README.parent / "docs" / "numbers.md"
MOST_WORDS = 600


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), flags=re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What the Python blocks print, run as one script in an empty folder."""
    script = folder / "readme.py"
    script.write_text("\n".join(blocks("python")))
    done = run([sys.executable, script.name], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loop_prints_what_the_readme_says(printed: str) -> None:
    shown = next(block for block in blocks("text") if block.startswith("60 HD101"))
    assert shown.strip() in printed


def test_the_commands_work(printed: str, folder: Path) -> None:
    lines = [line[2:] for block in blocks("console") for line in block.splitlines()]
    assert lines
    for line in lines:
        assert line.startswith("headway ")
        done = run([sys.executable, "-m", "headway", *line.split()[1:]], folder)
        assert done.returncode in (0, 1), done.stderr
        assert "HD501" in done.stdout


def test_it_is_short() -> None:
    assert len(README.read_text().split()) <= MOST_WORDS


def test_its_table_of_evidence_is_that_of_the_numbers() -> None:
    seen = result("2026-11-15-corpus-blind")["all"]
    text = README.read_text()
    assert f"{seen['detected']} of {seen['faults']}, with {seen['false alarms']} alarms" in text
    ratios = [
        case["ratio"]["guarded"] for case in result("2026-11-15-guard-overhead-h200")["results"]
    ]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} of a step" in text


def test_the_make_targets_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link


def test_the_picture_comes_first() -> None:
    lines = [line for line in README.read_text().splitlines() if line.strip()]
    assert lines[0] == "# headway"
    assert re.fullmatch(r"!\[.+\]\(docs/images/caught-nan\.svg\)", lines[1])


def test_the_cost_table_is_what_was_measured() -> None:
    columns = ("plain", "clip_grad_norm_", "guarded", ".item() loop", "histograms")
    for case in result("2026-11-15-guard-overhead-h200")["results"]:
        assert row(case["case"]) == [f"{case['ratio'][name]:.2f}" for name in columns]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("[our own corpus]", "2026-11-15-corpus"),
        ("[scripts written by people", "2026-11-15-corpus-blind"),
    ],
)
def test_the_table_of_findings_is_what_was_measured(name: str, file: str) -> None:
    seen = result(file)["all"]
    assert row(name) == [
        f"{seen['detected']} of {seen['faults']}",
        f"{seen['right first cause']} of {seen['faults']}",
        f"{seen['right line']} of {seen['with a line']}",
        f"{seen['false alarms']} of {seen['healthy runs']}",
    ]


def result(name: str) -> Any:
    return json.loads((README.parent / f"benchmarks/results/{name}.json").read_text())


def row(begins: str) -> list[str]:
    """The cells of a table's row, after the first."""
    [line] = [line for line in NUMBERS.read_text().splitlines() if line.startswith(f"| {begins}")]
    return [cell.strip(" *") for cell in line.strip("|").split("|")[1:]]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    return warm_python.run(command, cwd=folder, env=environment, timeout=240)
