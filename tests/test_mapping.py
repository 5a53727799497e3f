"""The mapping page promises only what there is: codes, links, commands and names are looked up."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

from headway import registry
from headway.cli.main import cli

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "mapping.md").read_text()
EXAMPLES = DOCS.parent / "examples"
CODE_SPANS = re.findall(r"`([^`\n]+)`", PAGE)
COMMANDS = sorted({span for span in CODE_SPANS if span.startswith("headway ")})
NAMES = sorted({span for span in CODE_SPANS if re.fullmatch(r"headway(\.\w+)+", span)})
DOCUMENTS = 5


def rows() -> list[list[str]]:
    """The cells of every row; a bar in a cell is written with a backslash."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in lines]
    return [[cell.strip() for cell in row] for row in cells]


def test_no_cell_is_empty() -> None:
    found = rows()
    assert len(found) > 200
    for row in found:
        assert len(row) == 2, row
        assert all(row), row


def test_each_document_has_its_part() -> None:
    assert len(re.findall(r"^## The .* notes$", PAGE, flags=re.M)) == DOCUMENTS


def test_nothing_is_named_twice_within_a_table() -> None:
    for table in PAGE.split("\n\n"):
        first = re.findall(r"^\| (.+?) \|", table, flags=re.M)
        assert len(first) == len(set(first)), table[:100]


def test_every_check_exists() -> None:
    known = {check.code for check in registry.all_checks()}
    named = set(re.findall(r"HD\d{3}", PAGE))
    assert len(named) > 60
    assert named <= known


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        page = DOCS / name
        assert page.exists(), link
        if anchor:
            assert anchor in {slug(title) for title in titles(page)}, link


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`((?:benchmarks|tests|examples)/[\w./]+)`", PAGE):
        assert (DOCS.parent / name).exists(), name


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_and_flag_exists(line: str) -> None:
    _, name, *words = line.split()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, line
    options = {
        option
        for item in command.params
        if isinstance(item, click.Option)
        for option in (*item.opts, *item.secondary_opts)
    }
    assert {word for word in words if word.startswith("-")} <= options, line


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_imported(name: str) -> None:
    framework = re.match(r"headway\.integrations\.(\w+)", name)
    if framework:
        pytest.importorskip(framework[1])
    found: object = importlib.import_module("headway")
    path = ["headway"]
    for part in name.split(".")[1:]:
        path.append(part)
        if not hasattr(found, part):
            importlib.import_module(".".join(path))
        found = getattr(found, part)


def test_every_key_of_the_trackers_is_on_their_page() -> None:
    keys = set(re.findall(r"`(grad(?:_layer)?/\w+)`", PAGE))
    assert keys
    told = (DOCS / "trackers.md").read_text()
    for key in keys:
        assert f"`{key}`" in told, key


def test_every_signal_is_on_its_page() -> None:
    told = (DOCS / "signals.md").read_text()
    shaped = re.compile(
        r"(param|component_grad|rank|act)/[\w<>]+|\w+_bytes|clip_coef|samples_per_s"
    )
    signals = {span for span in CODE_SPANS if shaped.fullmatch(span)}
    assert len(signals) >= 6
    for signal in signals:
        assert f"`{signal.replace('<name>', '<component>')}`" in told, signal


def test_every_example_is_in_the_index() -> None:
    index = (EXAMPLES / "README.md").read_text()
    scripts = list(EXAMPLES.glob("*/run_example.py"))
    assert scripts
    for script in scripts:
        assert f"({script.parent.name}/README.md)" in index


def titles(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
