"""Two models, two optimizers, one guard: each is judged by its own gradients."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import headers_of, steps_of, tensors_of
from support.trainings import assert_same, batches, make_net, skip_or_halt, squared_error, state_of
from torch import Tensor, nn
from torch.nn.functional import softplus

from headway import Guard, TrainingHalted
from headway.policy import Rung

N_CRITIC = 2
"""Steps of the discriminator for one of the generator."""
ORDERS = ("clear before", "clear after", "clear all", "zero in place")
"""Where people put zero_grad."""


@dataclass
class Gan:
    """Adversaries, with everything drawn at random drawn from the number of the batch."""

    order: str = "clear before"
    losses: dict[str, list[float]] = field(default_factory=lambda: {"d": [], "g": []})

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.d = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.g = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
        self.optimizers = {
            "d": torch.optim.Adam(self.d.parameters(), lr=1e-3),
            "g": torch.optim.Adam(self.g.parameters(), lr=1e-3),
        }

    def guard(self, **options: Any) -> Guard:
        return Guard([self.d, self.g], list(self.optimizers.values()), **options)

    def fakes(self, number: int, of: str) -> Tensor:
        generator = torch.Generator().manual_seed(2 * number + (of == "g"))
        return self.g(torch.randn(8, 4, generator=generator))

    def step_d(self, number: int, real: Tensor, factor: float = 1.0) -> None:
        def losses() -> Tensor:
            fake = self.fakes(number, "d").detach()
            return softplus(-self.d(real)).mean() + softplus(self.d(fake)).mean()

        self._step("d", losses, factor)

    def step_g(self, number: int, factor: float = 1.0) -> None:
        self._step("g", lambda: softplus(-self.d(self.fakes(number, "g"))).mean(), factor)

    def _step(self, who: str, loss_of: Callable[[], Tensor], factor: float) -> None:
        optimizer = self.optimizers[who]
        if self.order == "clear before":
            optimizer.zero_grad()
        elif self.order == "zero in place":
            optimizer.zero_grad(set_to_none=False)
        elif self.order == "clear all":
            for each in self.optimizers.values():
                each.zero_grad()
        loss = loss_of() * factor
        loss.backward()
        self.losses[who].append(loss.item())
        optimizer.step()
        if self.order == "clear after":
            for each in self.optimizers.values():
                each.zero_grad()

    def states(self) -> dict[str, Any]:
        return {
            who: state_of(model, self.optimizers[who])
            for who, model in (("d", self.d), ("g", self.g))
        }


def real_batches(count: int) -> list[Tensor]:
    return [x for x, _ in batches(count)]


def run(gan: Gan, loader: Any, *, skip: str = "", at: int = -1, factor: float = 1.0) -> None:
    """Train; the step of `skip` at batch `at` is left out, or taken with a factor that is not 1."""
    for number, real in enumerate(loader):
        for who in ("d", "g"):
            if who == "g" and number % N_CRITIC != N_CRITIC - 1:
                continue
            here = who == skip and number == at
            if here and factor == 1.0:
                continue
            scale = factor if here else 1.0
            if who == "d":
                gan.step_d(number, real, scale)
            else:
                gan.step_g(number, scale)


@pytest.mark.parametrize("order", ORDERS)
def test_a_healthy_pair_is_left_as_it_is(order: str) -> None:
    watched, alone = Gan(order), Gan(order)
    with watched.guard() as guard:
        run(watched, guard(real_batches(24)))
    run(alone, real_batches(24))
    assert_same(alone.states(), watched.states())
    assert alone.losses == watched.losses
    assert guard.actions == []


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e6], ids=["nan", "inf", "spike"])
@pytest.mark.parametrize("who", ["d", "g"])
@pytest.mark.parametrize("order", ORDERS)
def test_only_the_bad_ones_update_is_held(order: str, who: str, factor: float) -> None:
    """The rest goes on as if that one step had never been tried."""
    bad_at = 51
    watched, alone = Gan(order), Gan(order)
    with watched.guard() as guard:
        run(watched, guard(real_batches(60)), skip=who, at=bad_at, factor=factor)
    run(alone, real_batches(60), skip=who, at=bad_at)
    assert_same(alone.states(), watched.states())
    assert [action.step for action in guard.actions] == [bad_at]


@pytest.mark.parametrize("order", ORDERS)
def test_each_loss_goes_to_its_own_optimizer(order: str, tmp_path: Path) -> None:
    gan = Gan(order)
    with gan.guard(run_dir=tmp_path) as guard:
        run(gan, guard(real_batches(12)))
    steps = steps_of(tmp_path)
    assert [step.step for step in steps] == list(range(12))
    assert [step.values["loss"] for step in steps] == pytest.approx(gan.losses["d"])
    g_steps = [step for step in steps if "loss#1" in step.values]
    assert [step.step for step in g_steps] == [1, 3, 5, 7, 9, 11]
    assert [step.values["loss#1"] for step in g_steps] == pytest.approx(gan.losses["g"])
    assert all("grad_norm" in step.values for step in steps)
    assert ["grad_norm#1" in step.values for step in steps] == [False, True] * 6
    assert all(step.values["optimizers"] == 2 for step in steps)
    assert all("micro_batches" not in step.values for step in steps)
    assert all("grads_carried" not in step.values for step in steps)


@pytest.mark.parametrize("order", ORDERS)
def test_both_are_sampled_though_one_steps_at_odd_batches_only(order: str, tmp_path: Path) -> None:
    gan = Gan(order)
    with gan.guard(run_dir=tmp_path) as guard:
        run(gan, guard(real_batches(120)))
    names = headers_of(tmp_path)[-1].names("param")
    of_each = Counter(
        names[at].split(".")[0]
        for step in steps_of(tmp_path)
        if "param/weight_norm" in step.columns
        for at, _ in step.columns["param/weight_norm"].items()
    )
    assert of_each == {"model0": 12 * 4, "model1": 12 * 6}
    assert guard.findings == []


@pytest.mark.parametrize("order", ORDERS)
def test_an_old_batch_is_neither_kept_nor_blamed(order: str, tmp_path: Path) -> None:
    """The generator's backward leaves gradients in the discriminator: no reason to keep batches."""
    gan = Gan(order)
    alive: list[weakref.ref[Tensor]] = []

    def loader() -> Iterator[Tensor]:
        for number in range(12):
            real = real_batches(number + 1)[-1].clone()
            alive.append(weakref.ref(real))
            yield real * math.nan if number == 5 else real

    with gan.guard(run_dir=tmp_path) as guard:
        for number, real in enumerate(guard(loader())):
            gan.step_d(number, real)
            gan.step_g(number, math.nan if number == 8 else 1.0)
            del real
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 2
    assert [action.step for action in guard.actions] == [5, 8]
    assert [record.step for record in tensors_of(tmp_path) if record.role == "input"] == [5]


def test_names_tell_the_models_apart(tmp_path: Path) -> None:
    gan = Gan()
    with gan.guard(run_dir=tmp_path) as guard:
        run(gan, guard(real_batches(4)))
    names = headers_of(tmp_path)[-1].names("param")
    assert "model0.0.weight" in names
    assert "model1.0.weight" in names


@pytest.mark.parametrize("who", ["d", "g"])
def test_one_that_is_bad_for_ever_halts_the_run_although_the_other_is_well(who: str) -> None:
    gan, limit = Gan(), 4

    def train(guard: Guard) -> None:
        for number, real in enumerate(guard(real_batches(40))):
            gan.step_d(number, real, math.nan if who == "d" else 1.0)
            if number % N_CRITIC:
                gan.step_g(number, math.nan if who == "g" else 1.0)

    with gan.guard(policy=skip_or_halt(skips_in_a_row=limit)) as guard:
        with pytest.raises(TrainingHalted, match="5 in a row"):
            train(guard)
        rungs = [action.rung for action in guard.actions]
    assert rungs[: limit + 1] == [*[Rung.SKIP] * limit, Rung.HALT]
    assert len(gan.losses[who]) <= limit + 2, (
        "the record of a shared step is complete one step late"
    )


def test_two_guards_side_by_side_do_not_hear_each_other(tmp_path: Path) -> None:
    nets = [make_net(seed) for seed in (0, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in nets]
    guards = [
        Guard(net, optimizer, run_dir=tmp_path / str(at))
        for at, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True))
    ]
    expected: tuple[list[float], list[float]] = ([], [])
    for number, batch in enumerate(batches(6)):
        for at in (0, 1):
            if number == 4 and at == 0:
                guards[0].close()
            loss = squared_error(nets[at], batch) * (math.nan if (number, at) == (3, 1) else 1.0)
            loss.backward()
            expected[at].append(loss.item())
            optimizers[at].step()
            optimizers[at].zero_grad()
    guards[1].close()
    assert [step.values["loss"] for step in steps_of(tmp_path / "0")] == expected[0][:4]
    assert [step.values["loss"] for step in steps_of(tmp_path / "1")] == pytest.approx(
        expected[1], nan_ok=True
    )
    assert guards[0].actions == []
    assert [action.step for action in guards[1].actions] == [3]


def test_one_optimizer_for_two_models() -> None:
    body, head = make_net(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-2)
    with Guard([body, head], optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(8))):
            before = [p.detach().clone() for p in (*body.parameters(), *head.parameters())]
            ((head(body(x)) - y).pow(2).mean() * (math.nan if number == 5 else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            after = [*body.parameters(), *head.parameters()]
            same = [torch.equal(one, other) for one, other in zip(before, after, strict=True)]
            assert all(same) == (number == 5)
    assert [action.step for action in guard.actions] == [5]


def test_rates_of_parameter_groups(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(
        [
            {"params": model.inner.parameters(), "lr": 1e-3},
            {"params": model.norm.parameters(), "lr": 1e-2},
            {"params": model.head.parameters()},
        ],
        lr=1e-1,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.1)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(10)):
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    written = {
        step.step: step.columns["group/lr"]
        for step in steps_of(tmp_path)
        if step.columns.get("group/lr")
    }
    assert sorted(written) == [0, 5]
    assert list(written[0].values) == pytest.approx([1e-3, 1e-2, 1e-1])
    assert list(written[5].values) == pytest.approx([1e-4, 1e-3, 1e-2])
    assert list(headers_of(tmp_path)[-1].names("group")) == ["group0", "group1", "group2"]
    assert [step.values["lr"] for step in steps_of(tmp_path)] == pytest.approx(
        [1e-3] * 5 + [1e-4] * 5
    )
