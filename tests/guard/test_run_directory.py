"""What the live engine found is what anybody finds who reads the run directory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import events_of, headers_of, records_of, setups_of, steps_of
from support.trainings import Batch, batches, make_net, squared_error
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from headway import Guard, Policy, diagnose
from headway.core.codec import to_json
from headway.core.records import Record
from headway.engine import Engine

Story = Callable[[Path], Guard]


def train(
    run_dir: Path,
    *,
    steps: int = 60,
    spoil: Callable[[int, Batch], Batch] = lambda number, batch: batch,
    factor: Callable[[int], float] = lambda number: 1.0,
    net: Callable[[], nn.Module] = make_net,
    lr: float = 1e-2,
    clear: bool = True,
    policy: Policy | None = None,
) -> Guard:
    model = net()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    with Guard(model, optimizer, run_dir=run_dir, policy=policy) as guard:
        for number, batch in enumerate(guard(batches(steps, size=32))):
            loss = squared_error(model, spoil(number, batch)) * factor(number)
            guard.backward(loss, half=loss / 2)
            optimizer.step()
            if clear:
                optimizer.zero_grad()
    return guard


def healthy(run_dir: Path) -> Guard:
    return train(run_dir)


def nan_loss(run_dir: Path) -> Guard:
    return train(run_dir, factor=lambda number: math.nan if number in (20, 21, 40) else 1.0)


def nan_input(run_dir: Path) -> Guard:
    def spoil(number: int, batch: Batch) -> Batch:
        x, y = batch
        if number == 30:
            x = x.clone()
            x[3, 1] = math.nan
        return x, y

    data = batches(60, size=32)
    spoiled = [spoil(number, batch) for number, batch in enumerate(data)]
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=run_dir) as guard:
        for batch in guard(spoiled):
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return guard


def spikes(run_dir: Path) -> Guard:
    return train(run_dir, factor=lambda number: 1e5 if number in (35, 50) else 1.0)


def applied_spikes(run_dir: Path) -> Guard:
    policy = Policy(hold_spikes=False)
    return train(run_dir, factor=lambda n: 1e5 if n in (35, 50) else 1.0, policy=policy)


def never_cleared(run_dir: Path) -> Guard:
    return train(run_dir, clear=False, lr=1e-4)


def dead_layer(run_dir: Path) -> Guard:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 1), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    def net() -> nn.Module:
        torch.manual_seed(0)
        return Cut()

    return train(run_dir, net=net, steps=120)


def poisoned_from_the_start(run_dir: Path) -> Guard:
    def net() -> nn.Module:
        model = make_net()
        with torch.no_grad():
            model.inner.weight[0, 0] = math.inf
        return model

    return train(run_dir, net=net, policy=Policy(halt=False))


def scaler_skips(run_dir: Path) -> Guard:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with Guard(model, optimizer, run_dir=run_dir) as guard:
        for number, batch in enumerate(guard(batches(80))):
            scaler.scale(squared_error(model, batch)).backward()
            if number > 20:
                assert model.head.bias.grad is not None
                model.head.bias.grad.fill_(math.inf)  # as an overflow in float16 would
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return guard


def two_optimizers(run_dir: Path) -> Guard:
    models = [make_net(seed) for seed in (0, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-2) for model in models]
    with Guard(models, optimizers, run_dir=run_dir) as guard:
        for number, batch in enumerate(guard(batches(60))):
            for at in (0, 1):
                bad = (number, at) in ((20, 0), (30, 1))
                (squared_error(models[at], batch) * (math.nan if bad else 1.0)).backward()
                optimizers[at].step()
                optimizers[at].zero_grad()
    return guard


HEALTHY: list[Story] = [healthy]
FAULTY: dict[Story, set[str]] = {
    nan_loss: {"HD101", "HD201"},
    nan_input: {"HD501"},
    spikes: {"HD207"},
    applied_spikes: {"HD207"},
    never_cleared: {"HD206"},
    dead_layer: {"HD204"},
    poisoned_from_the_start: {"HD301"},
    scaler_skips: {"HD414"},
    two_optimizers: {"HD101", "HD201"},
}


def as_json(found: Any) -> list[str]:
    return [json.dumps(item.to_dict(), sort_keys=True) for item in found]


@pytest.mark.parametrize("story", [*HEALTHY, *FAULTY], ids=lambda story: story.__name__)
def test_findings_are_the_same_live_and_from_the_directory(story: Story, tmp_path: Path) -> None:
    guard = story(tmp_path)
    report = diagnose(tmp_path)
    assert as_json(report.findings) == as_json(guard.findings)
    assert {found.code for found in guard.findings} >= FAULTY.get(story, set())
    if story in HEALTHY:
        assert report.verdict == "healthy"
        assert guard.findings == []


@pytest.mark.parametrize("story", [*HEALTHY, *FAULTY], ids=lambda story: story.__name__)
def test_records_are_the_same_live_and_from_the_directory(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the findings: the engine was fed, live, exactly what is written."""
    fed: list[Record] = []
    original = Engine.feed

    def feed(self: Engine, record: Record) -> Any:
        fed.append(record)
        return original(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "feed", feed)
        story(tmp_path)
    assert [to_json(record) for record in records_of(tmp_path)] == [
        to_json(record) for record in fed
    ]


def test_a_second_guard_on_the_directory_adds_a_segment(tmp_path: Path) -> None:
    """A resumed run: what was written stays, and the new part stands behind it."""
    healthy(tmp_path)
    before = (tmp_path / "steps.rank0.jsonl").read_bytes()
    nan_loss(tmp_path)
    healthy(tmp_path)
    assert (tmp_path / "steps.rank0.jsonl").read_bytes().startswith(before)
    steps = steps_of(tmp_path)
    assert [step.segment for step in steps] == [0] * 60 + [1] * 60 + [2] * 60
    assert [step.step for step in steps] == [*range(60)] * 3
    assert {header.segment for header in headers_of(tmp_path)} == {0, 1, 2}
    assert len(events_of(tmp_path, "end")) == 3
    found = diagnose(tmp_path).findings
    assert {item.code for item in found} == {"HD101", "HD201"}
    assert {item.segment for item in found} == {1}


def test_a_run_killed_in_the_middle_of_a_line_can_be_read_and_resumed(tmp_path: Path) -> None:
    nan_loss(tmp_path)
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(path.read_bytes()[:-25])
    assert len(steps_of(tmp_path)) == 59
    healthy(tmp_path)
    assert [step.segment for step in steps_of(tmp_path)] == [0] * 59 + [1] * 60
    assert {item.code for item in diagnose(tmp_path).findings} == {"HD101", "HD201"}


def test_a_bad_step_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    """Whatever kills the run a moment later, the incident is written."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, run_dir=tmp_path)
    for number, batch in enumerate(guard(batches(8))):
        (squared_error(model, batch) * (math.nan if number == 5 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 5:
            assert [step.step for step in steps_of(tmp_path) if step.held] == [5]
            assert [event.data["action"] for event in events_of(tmp_path, "action")] == ["skip"]
    guard.close()


def test_the_set_up_is_written_down(tmp_path: Path) -> None:
    healthy(tmp_path)
    (header, *_) = headers_of(tmp_path)
    assert header.facts["models"] == ["Net"]
    assert header.facts["optimizers"] == ["Adam"]
    assert header.facts["torch"] == torch.__version__
    (parameters,) = setups_of(tmp_path, "parameters")
    assert parameters.facts["numel"] == [p.numel() for p in make_net().parameters()]
    (precision,) = setups_of(tmp_path, "precision")
    assert precision.facts == {"weights": ["float32"], "compute": ["float32"], "scaler": False}


def test_precision_of_an_autocast_run(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = squared_error(model, batches(1)[0])
        loss.backward()
        optimizer.step()
    (precision,) = setups_of(tmp_path, "precision")
    assert precision.facts["weights"] == ["float32"]
    assert set(precision.facts["compute"]) == {"bfloat16", "float32"}


def test_numbers_of_a_step_are_those_of_the_training(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    expected = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(12)):
            loss = squared_error(model, batch)
            loss.backward()
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
            ratios = {
                name: ((p - weights[name]).norm() / weights[name].norm()).item()
                for name, p in model.named_parameters()
            }
            expected.append((loss.item(), norm, ratios))
    names = headers_of(tmp_path)[-1].names("param")
    for step, (loss_value, norm, ratios) in zip(steps_of(tmp_path), expected, strict=True):
        assert step.values["loss"] == pytest.approx(loss_value)
        assert step.values["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert step.values["lr"] == 1e-2
        assert ("param/update_ratio" in step.columns) == (step.step in (0, 10))
        if "param/update_ratio" in step.columns:
            for at, ratio in step.columns["param/update_ratio"].items():
                assert ratio == pytest.approx(ratios[names[at]], rel=1e-3)
