"""docs/replay.md is run as it stands: the training, every kind of replay, and what they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm_python

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "replay.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def block(language: str, words: str) -> str:
    [found] = [text for text in blocks(language) if words in text]
    return found


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    return warm_python.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**environment, "PYTHONIOENCODING": "utf-8"},
        timeout=240,
    )


def commands(words: str) -> list[list[str]]:
    lines = [line[2:].split() for line in block("console", words).splitlines()]
    assert all(line[0] == "headway" for line in lines)
    return lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's training has been run, as `train.py`."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "train.py").write_text(block("python", "guard.explanations[0]"))
    done = run(folder, "train")
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("text", "log-of-zero")
    assert "next: headway replay runs/first/incidents/1-step18" in done.stderr
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(trained, tmp_path / "work")
    text = (tmp_path / "work" / "train.py").read_text()
    build = block("python", "def build")
    (tmp_path / "work" / "build.py").write_text(f"from torch import nn\n\n{build}")
    (tmp_path / "work" / "fixed.py").write_text(text.replace("x.log()", "x.clamp_min(1e-12).log()"))
    return tmp_path / "work"


@pytest.mark.slow
def test_the_example_reproduces_and_is_cured(trained: Path) -> None:
    [[_, *command]] = commands_alone("headway replay runs/first/incidents/1-step18\n")
    done = run(trained, "headway", *command)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(block("text", "reproduces: the loss is NaN"))
    proposed = re.search(r"write `(.*?)`", " ".join(done.stdout.split()))
    assert proposed is not None
    text = (trained / "train.py").read_text()
    line = next(line for line in text.splitlines() if "x.log()" in line)
    try:
        (trained / "train.py").write_text(text.replace(line.strip(), proposed[1]))
        done = run(trained, "headway", *command)
    finally:
        (trained / "train.py").write_text(text)
    assert done.returncode == 0, done.stderr
    shown = block("text", "cured: loss")
    assert without_digits(done.stdout).startswith(without_digits(shown))


def without_digits(text: str) -> str:
    return re.sub(r"[0-9.]+", "#", text)


def commands_alone(text: str) -> list[list[str]]:
    """The commands of the block that is nothing but this."""
    [found] = [item for item in blocks("console") if item == f"$ {text}"]
    return [line[2:].split() for line in found.splitlines()]


@pytest.mark.slow
def test_every_way_to_replay(folder: Path) -> None:
    codes = [run(folder, *("headway", *command[1:])).returncode for command in commands("--call")]
    assert codes == [1, 0, 1]


@pytest.mark.slow
def test_the_way_of_torchrun(folder: Path) -> None:
    [line] = block("console", "torchrun").splitlines()
    assert line.startswith("$ torchrun ")
    done = run(folder, "torch.distributed.run", *line.split()[2:])
    assert done.stdout.startswith("reproduces"), done.stderr


@pytest.mark.slow
def test_the_users_own_test_is_a_test(folder: Path) -> None:
    incidents = folder / "tests" / "incidents"
    shutil.copytree(folder / "runs" / "first" / "incidents", incidents)
    [line] = block("console", "tests/incidents").splitlines()
    assert run(folder, *line[2:].split()).returncode == 1
    text = f"from build import build\n\n{block('python', 'def test_')}"
    (folder / "test_mine.py").write_text(text)
    assert run(folder, "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py").returncode == 1
    mended = (folder / "build.py").read_text().replace("x.log()", "x.clamp_min(1e-6).log()")
    (folder / "build.py").write_text(mended)
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_trackers_hear_of_each_step_once(folder: Path) -> None:
    """The page's loop with `guard.replaying`, over the data of the page's training."""
    loop = block("python", "guard.replaying").replace("model(x)", "model(x.log())")
    text = (folder / "train.py").read_text()
    head = text.split("losses = []")[0]
    (folder / "tracked.py").write_text(
        f"{head}\n"
        "class Tracker:\n"
        "    def log(self, values):\n"
        "        with open('log.txt', 'a') as file:\n"
        "            file.write(f'{values}\\n')\n\n\n"
        f"tracker = Tracker()\n{loop}\nprint(len(guard.explanations))\n"
    )
    done = run(folder, "tracked")
    assert done.stdout == "1\n", done.stderr
    assert len((folder / "log.txt").read_text().splitlines()) == 40


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / link).exists(), link
