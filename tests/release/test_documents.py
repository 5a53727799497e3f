"""The pages of a release say what is so: dependencies, versions, what is vendored, news."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headway

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEPENDENCIES = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
VERSIONS = (ROOT / "docs/versions.md").read_text(encoding="utf-8")


def test_every_dependency_is_listed_with_its_least_version() -> None:
    declared = {
        re.match(r"[\w-]+", item)[0]: re.search(r">=([\d.]+)", item)[1]  # type: ignore[index]
        for item in PROJECT["project"]["dependencies"]
    }
    section = DEPENDENCIES.split("\n## ")[1]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", section, flags=re.M)
    assert dict(rows) == declared


def test_every_extra_is_listed() -> None:
    extras = PROJECT["project"]["optional-dependencies"].keys() - {"all", "dev"}
    section = DEPENDENCIES.split("## Only if you ask for them")[1].split("\n## ")[0]
    listed = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1])
    }
    assert listed == extras


def test_the_two_lists_of_development_tools_agree() -> None:
    assert PROJECT["dependency-groups"]["dev"] == PROJECT["project"]["optional-dependencies"]["dev"]


def test_what_is_vendored_is_listed_with_its_version() -> None:
    for path in (ROOT / "src").rglob("*.min.js"):
        told = re.search(r"uPlot \(v([\d.]+)\)|\bv?(\d+\.\d+\.\d+)\b", path.read_text()[:400])
        assert told, path
        name = path.name.partition(".")[0]
        assert f"| {name} | {told[1] or told[2]} |" in DEPENDENCIES, path


def test_the_range_of_versions_is_the_declared_one() -> None:
    [torch] = PROJECT["project"]["optional-dependencies"]["torch"]
    assert f"torch {torch.partition('>=')[2]}" in VERSIONS
    assert f"Python {PROJECT['project']['requires-python'].partition('>=')[2]}" in VERSIONS
    for line in PROJECT["project"]["classifiers"]:
        if re.search(r"Python :: 3\.\d+$", line):
            assert line.rpartition(" ")[2] in VERSIONS, line


def test_the_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {headway.__version__}\n" in text


def test_the_news_can_be_printed() -> None:
    pytest.importorskip("towncrier")
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for kind in PROJECT["tool"]["towncrier"]["type"]:
        if list((ROOT / "changes").glob(f"*.{kind['directory']}.md")):
            assert kind["name"] in done.stdout


def test_no_fragment_of_news_is_of_an_unknown_kind() -> None:
    known = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    for path in (ROOT / "changes").glob("*.md"):
        if path.name != "README.md":
            assert path.name.split(".")[-2] in known, path.name
            assert path.read_text(encoding="utf-8").strip(), path.name
