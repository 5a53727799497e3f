"""The generated pages say what the program says: checks, commands, Python names."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import api_page
import check_pages
import click
import command_page
import layers
import pytest
from fences import blocks
from moments import LIVE_FACTS, MOMENTS, OBJECTS, moments
from running import load_toml
from support.every_check import for_every_check

import headway
from headway import registry
from headway.cli.explain import limits_of
from headway.cli.main import cli
from headway.core.check import Check

ROOT = Path(__file__).parents[2]
CODES = list(registry.modules())


@for_every_check
def test_a_check_page_is_the_text_that_explain_prints(check: type[Check], tmp_path: Path) -> None:
    page = check_pages.page(check)
    opening, _, rest = inspect.cleandoc(check.__doc__ or "").partition("\n\n")
    assert page.startswith(f"# {check.code} {check.name}\n\n**{opening.strip()}**\n")
    assert rest in page
    for limit in limits_of(check):
        assert limit.name in page
    for block in blocks(page):
        if block.language == "toml":
            load_toml(block.text, tmp_path)


@for_every_check
def test_every_check_can_run_somewhere(check: type[Check]) -> None:
    letters = moments(check)
    assert letters
    assert set(letters) <= set(MOMENTS)


@pytest.mark.parametrize(
    ("code", "letters"),
    [
        ("HD101", "PLG"),  # a loss is in every log
        ("HD110", "P"),  # only calls that are watched show it
        ("HD201", "PLG"),
        ("HD301", "PLC"),
        ("HD309", "SPL"),  # the dtype of a weight needs no step
        ("HD317", "P"),
        ("HD501", "PL"),
        ("HD701", "C"),
        ("HD906", "SP"),
    ],
)
def test_where_a_check_can_run(code: str, letters: str) -> None:
    assert moments(registry.get(code)) == letters


def test_the_topics_that_decide_it_are_documented() -> None:
    told = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    for topic in (*OBJECTS, *LIVE_FACTS):
        assert f"| `{topic}` |" in told, topic


def test_the_index_has_every_check_by_family_and_by_moment() -> None:
    families, by_moment = check_pages.index().split("## By moment")
    for code in CODES:
        assert families.count(f"| [{code}]({code}.md) |") == 1
        letters = moments(registry.get(code))
        assert by_moment.count(f"[{code}]({code}.md)") == len(letters)


def test_every_command_and_option_is_on_the_page() -> None:
    page = command_page.page()
    top = click.Context(cli, info_name="headway")
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        assert command is not None
        section = page.split(f"## headway {name} ")[1].split("\n## ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1] in section, (name, parameter.opts)


def test_every_public_name_is_on_the_page() -> None:
    grouped = [name for names in api_page.GROUPS.values() for name in names]
    assert sorted([*grouped, "__version__"]) == sorted(headway.__all__)
    page = api_page.page()
    for name in grouped:
        assert f"### headway.{name} " in page
    for owner, inner in api_page.INNER.items():
        section = page.split(f"### headway.{owner} ")[1].split("\n### ")[0]
        for name in inner:
            assert not re.search(rf"^\| `{name}[(:]", section, flags=re.M), name


def test_the_layers_are_those_of_the_contract() -> None:
    drawn = layers.drawing()
    assert drawn.splitlines()[1] == "cli"
    assert drawn.splitlines()[-2] == "errors"
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert layers.MARK in architecture
    assert layers.PARTS_MARK in architecture


def test_contributing_shows_the_layout_as_it_is() -> None:
    """`python docs/site/layers.py` rewrites the blocks."""
    page = layers.CONTRIBUTING.read_text(encoding="utf-8")
    assert layers.MARK in page
    assert layers.PARTS_MARK in page
    assert layers.drawn(page) == page


def test_the_pages_are_made_without_torch() -> None:
    """The environment that builds the site has none."""
    code = (
        "import sys, api_page, check_pages, command_page\n"
        "api_page.page(), check_pages.index(), command_page.page()\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "docs" / "site",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
