"""The pages of a release say what is so: dependencies, versions, what is vendored, news."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.cli.main import COMMANDS
from headway.cli.options import FORMATS

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
    section = DEPENDENCIES.split("## Optional extras")[1].split("\n## ")[0]
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


# What other programs read: pre-commit and GitHub.


def test_the_hooks_are_what_pre_commit_accepts() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    hooks = clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert [hook["id"] for hook in hooks] == ["headway-scan", "headway-check"]
    for hook in hooks:
        tool, command = hook["entry"].split()
        assert tool == "headway"
        assert command in COMMANDS
    [scan] = [hook for hook in hooks if hook["id"] == "headway-scan"]
    assert re.search(scan["files"], "runs/model.safetensors")
    assert not re.search(scan["files"], "train.py")


def read_action() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return dict(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8")))


def test_the_action_is_a_composite_action() -> None:
    action = read_action()
    assert action["name"]
    assert action["description"]
    assert action["runs"]["using"] == "composite"
    used = set()
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash", "every step that runs something names its shell"
        assert "${{" not in step["run"], "an input must not become text of a script"
        values = [*step.get("env", {}).values(), "${{ " + step.get("if", "") + " }}"]
        used |= {name for value in values for name in re.findall(r"inputs\.([\w-]+)", value)}
    assert used == action["inputs"].keys()
    assert all("default" in item or item["required"] for item in action["inputs"].values())
    assert action["inputs"]["format"]["default"] in FORMATS


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("fail_on", "status"), [("", 1), ("never", 0)])
def test_the_action_runs_headway(tmp_path: Path, fail_on: str, status: int) -> None:
    action = read_action()
    given = {"target": "loss.csv", "command": "diagnose", "fail-on": fail_on, "output": "out.txt"}
    given["arguments"] = "--select HD101 --verbose"
    step = action["runs"]["steps"][1]
    inputs = {name: item.get("default", "") for name, item in action["inputs"].items()} | given
    variables = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], value)
        for name, value in step["env"].items()
    }
    tool = tmp_path / "bin" / "headway"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headway "$@"\n')
    tool.chmod(0o755)
    rows = "".join(f"{step},{2 - step / 100}\n" for step in range(60))
    (tmp_path / "loss.csv").write_text("step,loss\n" + rows + "60,nan\n61,nan\n")
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, **variables, "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    assert "title=HD101 nonfinite-loss::" in done.stdout
    assert (tmp_path / "out.txt").read_text() == done.stdout
