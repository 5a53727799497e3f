"""A loop over the real Accelerate: accumulation, clipping, bf16, a scheduler it prepared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from support.bad_samples import BATCH, loader
from support.guarded_trainings import loud
from support.paired_trainings import all_finite, steps_of
from support.trainings import assert_same, make_net, squared_error, state_of

import headway
from headway.errors import UsageError
from headway.integrations.accelerate import guard as guard_over

STEPS = 40
BAD_STEP = 25


@pytest.fixture(autouse=True)
def _each_its_own() -> None:
    # Accelerate keeps its state in the class, for the whole process.
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class Loop:
    """The loop of Accelerate's own guide."""

    def __init__(self, *, accumulation: int = 1, precision: str = "no", clip: float = 0.0) -> None:
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulation, mixed_precision=precision
        )
        self.accumulation = accumulation
        self.clip = clip
        net = make_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
        self.net, self.optimizer, self.schedule = self.accelerator.prepare(net, optimizer, schedule)
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []

    def guard(self, **options: Any) -> headway.Guard:
        return guard_over(self.accelerator, self.net, self.optimizer, self.schedule, **options)

    def run(self, guard: headway.Guard | None = None, bad: Sequence[int] = ()) -> dict[str, Any]:
        data = self.accelerator.prepare(loader(STEPS * BATCH * self.accumulation, bad))
        for batch in guard(data) if guard else data:
            self.before.append(self.state())
            with self.accelerator.accumulate(self.net):
                self.accelerator.backward(squared_error(self.net, batch))
                if self.clip and self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.net.parameters(), self.clip)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            self.after.append(self.state())
        return self.state()

    def state(self) -> dict[str, Any]:
        return state_of(self.net, self.optimizer.optimizer)

    def loss_on_clean_data(self) -> float:
        [batch] = torch.utils.data.DataLoader(loader(256).dataset, batch_size=256)
        with torch.no_grad():
            return float(squared_error(self.net.eval(), batch))


RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulation": 2},
    "clipping": {"clip": 0.5},
    "all at once in bf16": {"accumulation": 2, "precision": "bf16", "clip": 0.5},
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_poisoned_batch_leaves_no_trace_and_the_run_ends_well(name: str, tmp_path: Path) -> None:
    micro = RECIPES[name].get("accumulation", 1)
    loop = Loop(**RECIPES[name])
    with loop.guard(run_dir=tmp_path) as guard:
        loop.run(guard, bad=[BATCH * micro * (BAD_STEP + 1) - 3])
    first, last = BAD_STEP * micro, (BAD_STEP + 1) * micro - 1
    assert_same(loop.before[first], loop.after[last])
    assert all_finite(loop.state())

    clean = Loop(**RECIPES[name])
    begun = clean.loss_on_clean_data()
    clean.net.train()
    clean.run()
    assert clean.loss_on_clean_data() < 0.2 * begun
    assert loop.loss_on_clean_data() == pytest.approx(clean.loss_on_clean_data(), rel=0.3, abs=0.3)
    assert {finding.code for finding in loud(guard)} == {"HD101", "HD201", "HD501"}
    assert [action.step for action in guard.actions] == [BAD_STEP]
    assert headway.diagnose(tmp_path).causes[0].code == "HD501"
    assert len(steps_of(tmp_path)) == STEPS, "a step is a whole batch, not a micro-batch"


@pytest.mark.parametrize("name", RECIPES)
def test_a_healthy_run_is_the_same_bit_for_bit(name: str) -> None:
    plain, guarded = Loop(**RECIPES[name]), Loop(**RECIPES[name])
    with guarded.guard() as guard:
        guarded.run(guard)
    assert_same(plain.run(), guarded.state())
    assert loud(guard) == []


def test_several_optimizers_are_unwrapped() -> None:
    loop = Loop()
    net = make_net()
    inner, head = loop.accelerator.prepare(
        torch.optim.SGD(net.inner.parameters(), lr=0.1),
        torch.optim.SGD(net.head.parameters(), lr=0.1),
    )
    with guard_over(loop.accelerator, net, [inner, head]) as guard:
        squared_error(net, next(iter(loader(8)))).backward()
        inner.step()
        head.step()
        guard.step_done()
    assert guard.findings == [] or {finding.code for finding in guard.findings} == {"HD401"}
    assert guard._session.steps == 1


def test_deepspeed_is_refused_with_the_way_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(
        type(loop.accelerator),
        "distributed_type",
        property(lambda self: accelerate.DistributedType.DEEPSPEED),
    )
    with pytest.raises(UsageError, match=r"headway\.integrations\.deepspeed\.watch"):
        loop.guard()
