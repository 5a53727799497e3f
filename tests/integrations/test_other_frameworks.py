"""Trainings of other packages under `headway run` and `headway check`, unmodified.

`make test-frameworks` installs the packages; elsewhere these tests are skipped. The table in
docs/frameworks.md says the same as `EXPECTED`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.trainings import nothing_else_trains

from headway.config import Settings
from headway.core.findings import Severity
from headway.errors import TrainingHalted
from headway.guard.script.guarded_run import run_guarded
from headway.integrations.automatic import run_with_callbacks

SCRIPT = Path(__file__).parents[1] / "support" / "framework_trainings.py"


@dataclass(frozen=True)
class Expected:
    needs: tuple[str, ...]
    run: str
    """The cause that `run` reports for the bad step."""
    check: str
    """The cause that `check` reports."""
    steps: int = 8
    named: str | None = None
    """Text of the source line that `run` names; None: it cannot re-run the step."""
    partly: bool = False
    """Whether the optimizer is no torch optimizer."""


EXPECTED = {
    "sft": Expected(("trl", "datasets"), "HD201", "HD201", named="the bad line"),
    "dpo": Expected(("trl", "datasets"), "HD201", "HD201", named="the bad line"),
    "grpo": Expected(("trl", "datasets"), "HD201", "HD201", named="the bad line"),
    "sentences": Expected(("sentence_transformers", "datasets"), "HD501", "HD501", named="loss"),
    # `check` sees the labels of each call of the loss, so it names the cause of the NaN itself.
    "recipe": Expected((), "HD101", "HD112", named="the recipe's loss"),
    "accelerate": Expected(("accelerate",), "HD501", "HD501"),
    "ultralytics": Expected(("ultralytics",), "HD101", "HD101"),
    "fastai": Expected(("fastai",), "HD101", "HD501", 16, partly=True),
    "fastai_torch": Expected(("fastai",), "HD101", "HD501", 16),
    "keras": Expected(("keras",), "HD101", "HD501", 16, partly=True),
}


def python(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
    )


def weights(done: subprocess.CompletedProcess[str]) -> tuple[str, int]:
    """The checksum of the weights, and how many elements are not finite."""
    found = re.search(r"weights (\w+) nonfinite (\d+)", done.stdout + done.stderr)
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    return found[1], int(found[2])


def under(command: str, tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], tuple[str, int]]:
    options = ["--format", "json", "--fail-on", "never"]
    if command == "check":  # to its end, on a busy machine too
        options += ["--max-steps", "100", "--max-seconds", "200"]
    done = python(tmp_path, "-m", "headway", command, *options, str(SCRIPT), "--", *arguments)
    left = weights(done)
    return json.loads(done.stdout), left


@pytest.fixture(params=EXPECTED)
def name(request: pytest.FixtureRequest) -> str:
    for package in EXPECTED[request.param].needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make test-frameworks")
    return str(request.param)


@pytest.mark.nightly
def test_a_healthy_training_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    plain = weights(python(tmp_path, str(SCRIPT), name))
    report, guarded = under("run", tmp_path, name)
    assert guarded == plain
    assert report["steps"] == EXPECTED[name].steps
    assert report["verdict"] in ("healthy", "findings")
    codes = {item["code"]: item["severity"] for item in report["findings"]}
    assert codes == ({"HD003": "info"} if EXPECTED[name].partly else {})


@pytest.mark.nightly
def test_a_bad_update_is_skipped_and_its_cause_named(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    report, (_, nonfinite) = under("run", tmp_path, name, "bad")
    assert nonfinite == 0
    assert {item["action"] for item in report["actions"]} == {"skip"}
    assert report["causes"][0]["code"] == expected.run
    if expected.named is not None:
        finding = next(item for item in report["findings"] if item["code"] == expected.run)
        where = finding["where"]
        line = Path(where["file"]).read_text().splitlines()[where["line"] - 1]
        assert expected.named in line


@pytest.mark.nightly
def test_check_leaves_the_training_as_it_is_and_names_the_cause(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    report, (_, nonfinite) = under("check", tmp_path, name, "bad")
    assert nonfinite == 0
    assert report["causes"][0]["code"] == expected.check


FASTAI_LIKE = """
class Optimizer:
    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate

    def all_params(self, with_grad=False):
        return [(p, None, {}, {}) for p in self.parameters if p.grad is not None]

    def step(self):
        import torch
        with torch.no_grad():
            for parameter, *_ in self.all_params(with_grad=True):
                parameter -= self.rate * parameter.grad
"""


@pytest.fixture
def optimizer_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with the interface of fastai's optimizer, which most environments do not have."""
    folder = tmp_path / "fastai"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "optimizer.py").write_text(FASTAI_LIKE)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("fastai", "fastai.optimizer")
    for module in names:
        monkeypatch.delitem(sys.modules, module, raising=False)
    with nothing_else_trains():
        yield
    for module in names:  # other tests must not find it
        sys.modules.pop(module, None)


def train(bad_steps: range, out: list[Any], steps: int = 12) -> None:
    import torch
    from fastai.optimizer import Optimizer

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = Optimizer(model.parameters(), 0.1)
    for step in range(steps):
        x = torch.randn(8, 4)
        if step in bad_steps:
            x[3, 1] = float("nan")
        model.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    out.append([item.detach().clone() for item in model.parameters()])


@pytest.mark.usefixtures("optimizer_package")
def test_an_optimizer_that_is_no_torch_optimizer_skips_bad_updates() -> None:
    import torch

    out: list[Any] = []
    train(range(0), out)
    done = run_guarded(
        lambda: run_with_callbacks(lambda: train(range(0), out)), settings=Settings()
    )
    plain, guarded = out
    assert all(torch.equal(one, other) for one, other in zip(plain, guarded, strict=True))
    assert done.steps == 12
    found = [(item.code, item.severity) for item in done.report.findings]
    assert found == [("HD003", Severity.INFO)]
    done = run_guarded(
        lambda: run_with_callbacks(lambda: train(range(2), out)), settings=Settings()
    )
    assert all(bool(torch.isfinite(item).all()) for item in out[-1])
    assert [action.to_dict()["action"] for action in done.actions] == ["skip", "skip"]
    assert [action.step for action in done.actions] == [0, 1]
    assert done.unreached is not None
    assert done.unreached.partly
    assert "OptimWrapper" in done.unreached.advice
    # The method is the package's own again.
    from fastai.optimizer import Optimizer

    assert not hasattr(Optimizer.step, "__wrapped__")


@pytest.mark.usefixtures("optimizer_package")
def test_a_run_whose_every_update_is_bad_is_halted() -> None:
    out: list[Any] = []
    done = run_guarded(
        lambda: run_with_callbacks(lambda: train(range(2, 99), out, steps=99)), settings=Settings()
    )
    assert isinstance(done.error, TrainingHalted)
    assert "20" in str(done.error)
    assert "last good step" in str(done.error)
    assert not out
