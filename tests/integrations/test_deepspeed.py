"""A real DeepSpeed engine, watched. Needs `headway[deepspeed]`."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bad_samples import BATCH, loader
from support.paired_trainings import all_finite, events_of, headers_of, steps_of
from support.trainings import assert_same, make_net, squared_error, state_of

import headway
from headway.errors import UsageError
from headway.integrations.deepspeed import watch

STEPS = 20
BAD_STEP = 12


def test_anything_but_an_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="takes the engine that deepspeed"):
        watch(make_net())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """DeepSpeed itself, in a group of one process."""
    deepspeed = pytest.importorskip("deepspeed")
    # A faster reduction, compiled for minutes at its first use.
    monkeypatch.setattr(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    before = dict(os.environ)
    os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    yield deepspeed
    deepspeed.comm.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def make_engine(deepspeed: Any, **config: Any) -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True,
            **config,
        },
    )
    return engine


def train(engine: Any, bad: int | None = None) -> None:
    dtype = next(engine.module.parameters()).dtype
    for x, y in loader(STEPS * 2 * BATCH, () if bad is None else [bad]):
        engine.backward(squared_error(engine, (x.to(dtype), y.to(dtype))))
        engine.step()


slow = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ZERO = [
    pytest.param({"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}, marks=slow)
    for stage in (1, 2, 3)
]


@pytest.mark.parametrize("config", ZERO)
def test_a_step_that_deepspeed_skips_is_recorded_as_held(
    config: dict[str, Any], alone: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(alone, **config)
    with watch(engine, run_dir=tmp_path) as watching:
        train(engine, bad=BATCH * 2 * (BAD_STEP + 1) - 3)
    assert "headway observes" in caplog.text
    steps = steps_of(tmp_path)
    assert [step.step for step in steps] == list(range(STEPS))
    assert [step.step for step in steps if step.held] == [BAD_STEP]
    bad = steps[BAD_STEP].values
    assert math.isnan(bad["loss"])
    assert not math.isfinite(bad["grad_norm"])
    assert bad["micro_batches"] == 2
    assert {finding.code for finding in watching.findings} >= {"HD101", "HD201"}
    assert watching.actions == []
    assert {finding.step for finding in headway.diagnose(tmp_path).findings} == {BAD_STEP}
    assert "grads_carried" not in headers_of(tmp_path)[0].signals, "nobody measures that here"
    assert "backward" not in vars(engine), "the engine is as before"


@pytest.mark.parametrize("config", ZERO[:1])
def test_watching_changes_nothing(config: dict[str, Any], alone: Any, tmp_path: Path) -> None:
    plain, watched = make_engine(alone, **config), make_engine(alone, **config)
    train(plain)
    with watch(watched, run_dir=tmp_path) as watching:
        train(watched)
    assert_same(plain.module.state_dict(), watched.module.state_dict())
    assert watching.findings == []


@pytest.mark.parametrize("config", ZERO[:1])
def test_an_exception_is_written_down(config: dict[str, Any], alone: Any, tmp_path: Path) -> None:
    engine = make_engine(alone, **config)
    with pytest.raises(RuntimeError, match="gone"), watch(engine, run_dir=tmp_path):
        raise RuntimeError("gone")
    [event] = events_of(tmp_path, "crash")
    assert event.data["error"] == "RuntimeError: gone"


@pytest.mark.parametrize("config", [pytest.param({}, marks=slow)])
def test_without_zero_the_plain_guard_works_in_full(config: dict[str, Any], alone: Any) -> None:
    engine = make_engine(alone, **config)
    with headway.Guard(engine.module, engine.optimizer) as guard:
        train(engine, bad=BATCH * 2 * (BAD_STEP + 1) - 3)
    assert [action.step for action in guard.actions] == [BAD_STEP]
    assert all_finite(state_of(engine.module, engine.optimizer))
