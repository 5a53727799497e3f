"""HD405, HD406, HD407: schedules, rates and moments through a resume."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.observer_trainings import checked, codes, first_cause, fit, net
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.slow  # whole trainings, each watched from end to end


def loader(count: int = 320) -> DataLoader:
    torch.manual_seed(0)
    x = torch.randn(count, 8)
    return DataLoader(TensorDataset(x, x[:, :4].argmax(dim=1)), batch_size=16, shuffle=True)


def train(make, *, per_batch: bool, epochs: int = 3, data: DataLoader | None = None) -> None:
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    scheduler = make(optimizer)
    data = data or loader()
    for _ in range(epochs):
        for x, y in data:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if per_batch:
                scheduler.step()
        if not per_batch:
            scheduler.step()


def test_a_schedule_of_epochs_stepped_per_batch():
    def cosine():
        num_epochs = 8
        train(lambda o: CosineAnnealingLR(o, T_max=num_epochs), per_batch=True, epochs=num_epochs)

    def drops():
        train(lambda o: StepLR(o, step_size=2, gamma=0.1), per_batch=True)

    def exponential():
        train(lambda o: ExponentialLR(o, gamma=0.3), per_batch=True)

    for work in (cosine, drops, exponential):
        done = checked(work, 6)
        assert [item.code for item in done.report.causes][:1] == ["HD405"], work.__name__
        assert done.report.causes[0].root.where.line


def test_a_collapse_that_only_the_rate_shows():
    def work():
        train(lambda o: LambdaLR(o, lambda step: 0.5**step), per_batch=True)

    assert first_cause(work, 50) == "HD405"


def test_healthy_schedules():
    def per_epoch():
        train(lambda o: StepLR(o, step_size=1, gamma=0.5), per_batch=False)

    def cosine_in_steps():
        train(lambda o: CosineAnnealingLR(o, T_max=3 * 20), per_batch=True)

    def one_epoch():
        train(lambda o: CosineAnnealingLR(o, T_max=20), per_batch=True, epochs=1)

    def one_cycle():
        train(lambda o: OneCycleLR(o, 0.01, total_steps=61), per_batch=True)

    def restarts():
        train(lambda o: CosineAnnealingWarmRestarts(o, T_0=10), per_batch=True)

    def plateau():
        model = net()
        optimizer = Adam(model.parameters(), lr=0.01)
        scheduler = ReduceLROnPlateau(optimizer, patience=5)
        fit(model, optimizer, 30, each=lambda step: scheduler.step(1.0 / (1 + step // 6)))

    for work in (per_epoch, cosine_in_steps, one_epoch, one_cycle, restarts, plateau):
        assert not {"HD405", "HD406", "HD407"} & set(codes(work, 60)), work.__name__


def session(path: Path, steps: int, *, restore: str, optimizer_kind=Adam, **settings) -> None:
    model = net()
    settings = {"lr": 0.02, **settings}
    optimizer = optimizer_kind(model.parameters(), **settings)
    early = LambdaLR(optimizer, lambda step: 0.9**step) if "early" in restore else None
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        if "optimizer" in restore:
            optimizer.load_state_dict(state["optimizer"])
        if "schedule" in restore and early is not None:
            early.load_state_dict(state["scheduler"])
    scheduler = early or LambdaLR(optimizer, lambda step: 0.9**step)
    fit(model, optimizer, steps, each=lambda _: scheduler.step())
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        },
        path,
    )


def test_the_schedule_begins_anew(tmp_path: Path):
    def work():
        session(tmp_path / "a.pt", 20, restore="optimizer")
        session(tmp_path / "a.pt", 10, restore="optimizer")

    assert first_cause(work, 30) == "HD406"


def test_the_moments_are_lost(tmp_path: Path):
    def work():
        session(tmp_path / "a.pt", 12, restore="")
        session(tmp_path / "a.pt", 10, restore="")

    assert first_cause(work, 30) == "HD407"


def test_the_moments_of_an_earlier_process_are_lost(tmp_path: Path):
    session(tmp_path / "a.pt", 12, restore="")

    def work():
        session(tmp_path / "a.pt", 10, restore="")

    assert first_cause(work, 3) == "HD407"


def test_an_optimizer_in_every_epoch():
    def work():
        model = net()
        for _ in range(3):
            fit(model, Adam(model.parameters(), lr=0.01), 10)

    assert first_cause(work, 30) == "HD407"


def test_weights_kept_in_memory():
    def work():
        model = net()
        fit(model, Adam(model.parameters(), lr=0.01), 12)
        kept = copy.deepcopy(model.state_dict())
        again = net()
        again.load_state_dict(kept)
        fit(again, Adam(again.parameters(), lr=0.01), 10)

    assert first_cause(work, 30) == "HD407"


def test_healthy_resumes(tmp_path: Path):
    def everything_restored():
        session(tmp_path / "a.pt", 12, restore="early optimizer schedule")
        session(tmp_path / "a.pt", 12, restore="early optimizer schedule")

    def plain_sgd():
        session(tmp_path / "b.pt", 12, restore="", optimizer_kind=SGD)
        session(tmp_path / "b.pt", 12, restore="", optimizer_kind=SGD)

    def fine_tuning_at_another_rate():
        session(tmp_path / "c.pt", 12, restore="")
        session(tmp_path / "c.pt", 12, restore="", lr=0.001)

    def folds():
        for _ in range(3):
            model = net()
            fit(model, Adam(model.parameters(), lr=0.01), 8)

    def stages():
        model = net()
        fit(model, Adam(model[2].parameters(), lr=0.01), 8)
        model[0].requires_grad_(True)
        fit(model, Adam(model.parameters(), lr=0.003), 8)

    def best_weights_put_back():
        model = net()
        optimizer = Adam(model.parameters(), lr=0.01)
        best = copy.deepcopy(model.state_dict())
        fit(model, optimizer, 8)
        model.load_state_dict(best)
        fit(model, optimizer, 8)

    for work in (
        everything_restored,
        plain_sgd,
        fine_tuning_at_another_rate,
        folds,
        best_weights_put_back,
    ):
        assert not {"HD405", "HD406", "HD407"} & set(codes(work, 40)), work.__name__
    assert not {"HD406", "HD407"} & set(codes(stages, 40))


def test_nothing_is_drawn_and_torch_is_put_back():
    def plain(seed_after: list[float]) -> None:
        model = net()
        torch.manual_seed(3)
        fit(model, Adam(model.parameters(), lr=0.01), 6)
        seed_after.append(float(torch.rand(())))
        seed_after.append(float(model[0].weight.detach().sum()))

    before = (torch.load, StepLR.step, torch.autocast.__enter__)
    alone: list[float] = []
    watched: list[float] = []
    plain(alone)
    checked(lambda: plain(watched), 50)
    assert alone == watched
    assert before == (torch.load, StepLR.step, torch.autocast.__enter__)


def test_tasks_that_begin_anew_are_healthy():
    def inner_loops():
        model = net()
        slow = copy.deepcopy(model.state_dict())
        for _ in range(4):
            model.load_state_dict(slow)
            fit(model, Adam(model.parameters(), lr=0.01), 5)
            fast = model.state_dict()
            slow = {name: slow[name] + 0.5 * (fast[name] - slow[name]) for name in slow}

    def tasks_one_after_the_other():
        model = net()
        for _ in range(3):
            optimizer = Adam(model.parameters(), lr=0.01)
            for x, y in loader(80):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    for work in (inner_loops, tasks_one_after_the_other):
        assert "HD407" not in codes(work, 40), work.__name__


def test_a_file_of_weights_alone_from_the_middle_of_a_session(tmp_path: Path):
    path = tmp_path / "weights.pt"

    def session_of(steps: int) -> None:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
        if path.exists():
            model.load_state_dict(torch.load(path))

        def keep(step: int) -> None:
            if step % 5 == 4:
                torch.save(model.state_dict(), path)

        fit(model, optimizer, steps, each=keep)

    def work():
        session_of(12)
        session_of(8)

    assert first_cause(work, 30) == "HD407"


def test_a_file_of_weights_alone_from_the_end_of_a_training(tmp_path: Path):
    path = tmp_path / "weights.pt"

    def work():
        first = net()
        fit(first, Adam(first.parameters(), lr=0.01), 12)
        torch.save(first.state_dict(), path)
        second = net()
        second.load_state_dict(torch.load(path))
        fit(second, Adam(second.parameters(), lr=0.01), 10)

    assert "HD407" not in codes(work, 30)
