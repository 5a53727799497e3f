"""Systems without /proc, fork, alarms and most signals; devices that torch does not know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.guard.measure.sampling import device_allocated_bytes
from headway.torch_adapters import compat, rng

BARE = Path(__file__).parents[1] / "support" / "bare_system.py"
TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 8)
for step in range(30):
    if step == 20:
        x[5] = float("nan")
    loss = torch.nn.functional.cross_entropy(model(x), torch.zeros(64, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
ENDLESS = TRAIN.replace("range(30)", "iter(int, 1)").replace("x[5] =", "unused =")


def bare(folder: Path, *args: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(BARE), *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HEADWAY_STRICT": "1"},
        timeout=240,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_every_command_works_without_what_windows_and_macos_lack(tmp_path: Path) -> None:
    pytest.importorskip("psutil", reason="installed where there is no /proc")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "endless.py").write_text(ENDLESS)
    status, text, _ = bare(tmp_path, "check", "train.py", "--format", "json")
    report = json.loads(text)
    assert status == 1
    assert "HD501" in {cause["code"] for cause in report["causes"]}
    assert "HD801" not in {item["code"] for item in report["not_run"]}, "memory was measured"
    # That it ends is what counts; a slow machine may not have reached a step.
    assert bare(tmp_path, "check", "endless.py", "--max-seconds", "4")[0] in (0, 2)
    status, _, _ = bare(tmp_path, "run", "train.py", "--out", "kept")
    assert status == 0
    status, text, _ = bare(tmp_path, "diagnose", "kept", "--format", "json")
    assert status == 1
    assert json.loads(text)["causes"][0]["code"] == "HD101"
    assert bare(tmp_path, "scan", "model.pt")[0] == 0
    assert bare(tmp_path, "report", "kept", "-o", "r.html")[0] == 0
    status, _, said = bare(tmp_path, "run", "train.py", "--restarts", "1")
    assert status == 2
    assert "fork()" in said


# Devices


def test_memory_of_a_device_that_is_not_known() -> None:
    assert device_allocated_bytes(torch.device("cpu")) is None
    assert device_allocated_bytes(torch.device("meta")) is None
    assert device_allocated_bytes(torch.device("privateuseone")) is None


@pytest.mark.parametrize("several", [True, False], ids=["as on XPU", "as on MPS"])
def test_the_generator_of_another_accelerator_is_restored(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = torch.Generator()

    def get(*_: Any) -> torch.Tensor:
        return noise.get_state()

    def put(state: torch.Tensor, *_: Any) -> None:
        noise.set_state(state)

    module = SimpleNamespace(get_rng_state=get, set_rng_state=put)
    if several:
        module.get_rng_state_all = lambda: [get()]
        module.set_rng_state_all = lambda states: put(states[0])
    monkeypatch.setattr(rng, "accelerator_type", lambda: "other")
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    rng.other_accelerator.cache_clear()
    try:
        for restore in (rng.RngState().restore, partial(rng.restore, rng.capture())):
            first = torch.rand(3, generator=noise)
            restore()
            assert torch.equal(torch.rand(3, generator=noise), first)
            restore()
    finally:
        rng.other_accelerator.cache_clear()


@pytest.mark.parametrize("module", [SimpleNamespace(), None], ids=["no generators", "no module"])
def test_an_accelerator_without_generators_changes_nothing(
    module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(kind: str) -> object:
        if module is None:
            raise RuntimeError(f"no module for {kind}")
        return module

    monkeypatch.setattr(rng, "accelerator_type", lambda: "new-device")
    monkeypatch.setattr(torch, "get_device_module", find)
    rng.other_accelerator.cache_clear()
    try:
        state = rng.capture()
        assert "accelerator" not in state
        rng.restore(state)
        rng.RngState().restore()
    finally:
        rng.other_accelerator.cache_clear()


def test_the_accelerator_of_this_machine() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    if not torch.accelerator.is_available() or expected == "cuda":
        assert compat.accelerator_type() == expected
