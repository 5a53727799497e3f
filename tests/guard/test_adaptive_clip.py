"""Guard(max_norm=AdaGC()) and Guard(max_norm=ZClip()): trainings, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import column_by_name, headers_of, steps_of
from support.reference_clipping import plain
from support.trainings import Batch, Net, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from headway import AdaGC, Guard, ZClip
from headway.errors import UsageError

STEPS, BAD = 40, 30
"""Past the grace period of the spike rule."""
RULES: dict[str, AdaGC | ZClip] = {
    "AdaGC": AdaGC(warmup=8, relative=2.5, max_norm=9.0),
    "ZClip": ZClip(warmup=8, z=1.0),
    "ZClip with a cap": ZClip(warmup=8, z=1.0, max_norm=4.0),
}
BOTH = pytest.mark.parametrize("name", RULES)
PATHS = ("host", "device")
PATH = pytest.mark.parametrize("path", PATHS)
"""The code for fused kernels runs on the CPU's fused kernels as well, once told to."""


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=True, **options)


def guard_of(model: Any, optimizer: Any, path: str = "host", **options: Any) -> Guard:
    guard = Guard(model, optimizer, **options)
    for watch in guard._session.optimizer_steps.values():
        watch._fused = path == "device"
    return guard


def learned(guard: Guard) -> dict[str, Any]:
    return guard._session.clip.state_dict()


def norms_of(model: nn.Module) -> list[float]:
    return [p.grad.double().norm().item() for p in model.parameters() if p.grad is not None]


class Twin:
    """The same training without a guard, clipped by the plain formulas."""

    def __init__(self, rule: AdaGC | ZClip, model: nn.Module | None = None) -> None:
        self.model = model or make_net()
        self.optimizer = sgd(self.model)
        self.plain = plain(rule, len(list(self.model.parameters())))
        self.factors: list[list[float]] = []
        self.ratios: list[float] = []
        """The norm after all clipping, of that before it."""

    def step(
        self, batch: Batch, *, factor: float = 1.0, clip: Callable[[Any], None] | None = None
    ) -> None:
        (squared_error(self.model, batch) * factor).backward()
        before = norms_of(self.model)
        if clip is not None:
            clip(self.model)
        for parameter, one in zip(
            self.model.parameters(), self.plain.step(norms_of(self.model)), strict=True
        ):
            assert parameter.grad is not None
            parameter.grad.mul_(one)
        after = norms_of(self.model)
        self.factors.append([a / b for a, b in zip(after, before, strict=True)])
        self.ratios.append(math.hypot(*after) / math.hypot(*before))
        self.optimizer.step()
        self.optimizer.zero_grad()


def step(model: nn.Module, optimizer: Any, batch: Batch, factor: float = 1.0) -> None:
    (squared_error(model, batch) * factor).backward()
    optimizer.step()
    optimizer.zero_grad()


def assert_close(model: nn.Module, other: nn.Module) -> None:
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


@PATH
@BOTH
def test_a_training_is_that_of_the_plain_formulas(name: str, path: str, tmp_path: Path) -> None:
    """Weights, the share of the norm that was left, and each tensor's own factor."""
    model, twin = make_net(), Twin(RULES[name])
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=RULES[name], run_dir=tmp_path) as guard:
        for batch in guard(batches(STEPS)):
            step(model, optimizer, batch)
            twin.step(batch)
            assert_close(model, twin.model)
    steps = steps_of(tmp_path)
    found = [each.values["clip_coef"] for each in steps]
    assert found == pytest.approx(twin.ratios, rel=1e-3)
    assert min(found[8:]) < 0.95 < max(found[8:]), "some are clipped and some are not"
    header = headers_of(tmp_path)[-1]
    assert type(RULES[name]).__name__ in header.facts["max_norm"]
    for at in range(STEPS):
        if name == "AdaGC" and at % 10 == 0:
            column = column_by_name(steps[at], "param/clip_coef", header)
            wanted = dict(zip(dict(model.named_parameters()), twin.factors[at], strict=True))
            del column["inner.bias"], wanted["inner.bias"]  # before BatchNorm: rounding errors
            assert column == pytest.approx(wanted, rel=1e-2)
        else:
            assert "param/clip_coef" not in steps[at].columns


@PATH
@BOTH
def test_the_norm_on_record_is_the_one_before(name: str, path: str, tmp_path: Path) -> None:
    model = make_net()
    optimizer = sgd(model)
    expected = []
    with guard_of(model, optimizer, path, max_norm=RULES[name], run_dir=tmp_path) as guard:
        for batch in guard(batches(STEPS)):
            squared_error(model, batch).backward()
            expected.append(math.hypot(*norms_of(model)))
            optimizer.step()
            optimizer.zero_grad()
    found = [each.values["grad_norm"] for each in steps_of(tmp_path)]
    assert found == pytest.approx(expected, rel=1e-4)


FAULTS = {"nan": math.nan, "inf": math.inf, "spike": 1e5}


@PATH
@pytest.mark.parametrize("fault", FAULTS)
@BOTH
def test_a_bad_step_is_as_if_it_had_never_been(name: str, fault: str, path: str) -> None:
    """Bit for bit, in the weights and in what was learned; the brake sees what is not clipped."""
    models = [make_net(), make_net()]
    optimizers = [sgd(model) for model in models]
    guards = [
        guard_of(model, optimizer, path, max_norm=RULES[name])
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    for number, batch in enumerate(batches(STEPS, size=64)):
        if number == BAD:
            step(models[0], optimizers[0], batch, FAULTS[fault])
            if fault == "nan":  # and once more, in one gradient alone
                squared_error(models[0], batch).backward()
                models[0].head.bias.grad.fill_(math.nan)  # type: ignore[union-attr]
                optimizers[0].step()
                optimizers[0].zero_grad()
        else:
            for model, optimizer in zip(models, optimizers, strict=True):
                step(model, optimizer, batch)
        if number >= BAD:
            assert_same(learned(guards[1]), learned(guards[0]))
            assert_same(*(state_of(m, o) for m, o in zip(models, optimizers, strict=True)))
    assert [a.step for a in guards[0].actions][:1] == [BAD]
    assert guards[1].actions == []
    for guard in guards:
        guard.close()


@PATH
def test_no_factors_are_on_record_for_a_held_step(path: str, tmp_path: Path) -> None:
    model = make_net()
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=AdaGC(), run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(21))):
            step(model, optimizer, batch, math.nan if number == 10 else 1.0)
    sampled = [steps_of(tmp_path)[at].columns for at in (0, 10, 20)]
    assert ["param/clip_coef" in columns for columns in sampled] == [True, False, True]


@PATH
def test_gradients_of_a_held_step_are_left_as_they_are(path: str) -> None:
    model = make_net()
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=AdaGC(warmup=1, max_norm=1e-3)) as guard:
        for number, batch in enumerate(guard(batches(5))):
            (squared_error(model, batch) * (math.nan if number == 3 else 1)).backward()
            if number == 3:
                model.head.bias.grad = torch.full((1,), 7.0)
            optimizer.step()
            if number == 3:
                assert model.head.bias.grad == 7.0
            optimizer.zero_grad()
        assert [action.step for action in guard.actions] == [3]


@PATH
@BOTH
def test_gradients_of_zero_are_no_alarm(name: str, path: str, tmp_path: Path) -> None:
    """A norm of 0 leaves no ratio to speak of."""
    model = make_net()
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=RULES[name], run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(12))):
            step(model, optimizer, batch, 0.0 if number in (3, 10) else 1.0)
        assert guard.actions == []
    assert [each.values["clip_coef"] for each in steps_of(tmp_path)][3::7] == [1.0, 1.0]


def clip_all(net: Any) -> None:
    clip_grad_norm_(net.parameters(), 2.0)


def clip_backwards(net: Any) -> None:
    clip_grad_norm_(list(net.parameters())[::-1], 2.0)


def clip_in_two(net: Any) -> None:
    clip_grad_norm_(net.inner.parameters(), 0.5)
    clip_grad_norm_([*net.norm.parameters(), *net.head.parameters()], 4.0)


@PATH
@pytest.mark.parametrize("clip", [clip_all, clip_backwards, clip_in_two])
@BOTH
def test_beside_the_users_own_clipping(
    name: str, clip: Callable[[Any], None], path: str, tmp_path: Path
) -> None:
    """The rule limits what the user has left, and the record tells what both have done."""
    model, twin = make_net(), Twin(RULES[name])
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=RULES[name], run_dir=tmp_path) as guard:
        for batch in guard(batches(STEPS)):
            squared_error(model, batch).backward()
            clip(model)
            optimizer.step()
            optimizer.zero_grad()
            twin.step(batch, clip=clip)
            assert_close(model, twin.model)
    steps = steps_of(tmp_path)
    assert [each.values["clip_coef"] for each in steps] == pytest.approx(twin.ratios, rel=1e-3)
    if name == "AdaGC":
        column = column_by_name(steps[20], "param/clip_coef", headers_of(tmp_path)[-1])
        names = list(dict(model.named_parameters()))
        assert column["head.weight"] == pytest.approx(
            twin.factors[20][names.index("head.weight")], rel=1e-3
        )


@PATH
@BOTH
def test_a_limit_of_the_users_that_is_nan_is_held(name: str, path: str) -> None:
    model = make_net()
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=RULES[name]) as guard:
        for number, batch in enumerate(guard(batches(12))):
            before = learned(guard), state_of(model, optimizer)
            squared_error(model, batch).backward()
            clip_grad_norm_(model.parameters(), math.nan if number == 9 else 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if number == 9:
                assert_same(before[0], learned(guard))
                assert_same(before[1], state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [9]


@pytest.mark.parametrize(("path", "fused"), [("host", False), ("host", True), ("device", True)])
@BOTH
def test_under_a_scaler_everything_is_as_without_one(name: str, path: str, fused: bool) -> None:
    """A fused optimizer gets its gradients still scaled; and an overflow teaches nothing."""
    models: list[Net] = [make_net(), make_net()]
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=fused) for model in models
    ]
    guards = [
        guard_of(model, optimizer, path, max_norm=RULES[name])
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    scaler = GradScaler("cpu", init_scale=2.0**10, backoff_factor=0.5)
    for number, batch in enumerate(batches(STEPS)):
        before = learned(guards[0])
        scaler.scale(squared_error(models[0], batch)).backward()
        if number in (5, 20):  # before and after the warm-up
            assert models[0].inner.weight.grad is not None
            models[0].inner.weight.grad[0, 0] = math.inf
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[0].zero_grad()
        if number in (5, 20):
            assert_same(before, learned(guards[0]))
            models[1].load_state_dict(models[0].state_dict())  # the forward moved BatchNorm's
            continue
        step(models[1], optimizers[1], batch)
        assert_close(*models)
    for key, value in learned(guards[0])["0"].items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, learned(guards[1])["0"][key], rtol=1e-3, atol=1e-6)
    assert scaler.get_scale() == 2.0**8
    assert guards[0].actions == []
    for guard in guards:
        guard.close()


@PATH
@BOTH
def test_a_step_that_the_scaler_skips_teaches_nothing(name: str, path: str) -> None:
    """Not even when the user has put a number in the place of the overflow meanwhile."""
    model = make_net()
    optimizer = sgd(model)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with guard_of(model, optimizer, path, max_norm=RULES[name]) as guard:
        for number, batch in enumerate(guard(batches(12))):
            before = learned(guard)
            scaler.scale(squared_error(model, batch)).backward()
            gradient = model.inner.weight.grad
            assert gradient is not None
            if number == 9:
                gradient[0, 0] = math.inf
            scaler.unscale_(optimizer)
            gradient.nan_to_num_(posinf=0.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number == 9:
                assert_same(before, learned(guard))
        assert learned(guard)["0"]["seen"].max() == 11


@BOTH
def test_two_optimizers_learn_apart(name: str) -> None:
    """As two guards would: one may be loud and the other quiet."""
    together, alone = [make_net(0), make_net(1)], [make_net(0), make_net(1)]
    optimizers = [sgd(model) for model in together]
    others = [sgd(model) for model in alone]
    guard = Guard(together, optimizers, max_norm=RULES[name])
    guards = [
        Guard(model, other, max_norm=RULES[name])
        for model, other in zip(alone, others, strict=True)
    ]
    for batch in batches(STEPS):
        for factor, model, optimizer in zip((1.0, 0.01), together, optimizers, strict=True):
            step(model, optimizer, batch, factor)
        for factor, model, optimizer in zip((1.0, 0.01), alone, others, strict=True):
            step(model, optimizer, batch, factor)
    for at in (0, 1):
        assert_same(learned(guards[at])["0"], learned(guard)[str(at)])
        assert_same(state_of(alone[at], others[at]), state_of(together[at], optimizers[at]))
    for each in (guard, *guards):
        each.close()


@PATH
@BOTH
def test_what_was_learned_survives_a_resume(name: str, path: str, tmp_path: Path) -> None:
    data = batches(STEPS)
    model = make_net()
    optimizer = sgd(model)
    with guard_of(model, optimizer, path, max_norm=RULES[name]) as guard:
        for number, batch in enumerate(data):
            if number == 20:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "clip": learned(guard),
                }
                torch.save(saved, tmp_path / "state.pt")
            step(model, optimizer, batch)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again = make_net(5)
    other = sgd(again)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    with guard_of(again, other, path, max_norm=RULES[name]) as guard:
        guard._session.clip.load_state_dict(saved["clip"])
        for batch in data[20:]:
            step(again, other, batch)
        assert_same(state_of(model, optimizer), state_of(again, other))


def test_a_rule_that_was_changed_starts_afresh_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make_net()
    with Guard(model, sgd(model), max_norm=ZClip()) as guard:
        before = learned(guard)
    with Guard(model, sgd(model), max_norm=AdaGC()) as guard:
        guard._session.clip.load_state_dict(before)
        assert [text for text in caplog.messages if "AdaGC starts from scratch" in text]
        step(model, guard._optimizers[0], batches(1)[0])
        assert learned(guard)["0"]["seen"].tolist() == [1.0] * 6


def test_without_a_rule_there_is_nothing_to_save() -> None:
    model = make_net()
    for max_norm in (None, 1.0):
        with Guard(model, sgd(model), max_norm=max_norm) as guard:
            guard._session.clip.load_state_dict({"0": {"rule": "ZClip"}})
            assert learned(guard) == {}


def test_a_line_search_that_goes_bad_teaches_nothing() -> None:
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    bad_call = 0

    def closure() -> Tensor:
        nonlocal bad_call
        bad_call -= 1
        optimizer.zero_grad()
        loss = squared_error(model, batch) * (math.nan if bad_call == 0 else 1.0)
        loss.backward()
        return loss

    with Guard(model, optimizer, max_norm=AdaGC()) as guard:
        for number, batch in enumerate(guard(batches(9))):  # noqa: B007
            before = learned(guard)
            bad_call = 2 if number == 7 else 0
            optimizer.step(closure)
            if number == 7:
                assert_same(before, learned(guard))
        assert [action.step for action in guard.actions] == [7]
        assert learned(guard)["0"]["seen"].tolist() == [8.0] * 6


class Odd(nn.Module):
    """A sparse gradient, a scalar, a bfloat16 weight and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 4, sparse=True)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.narrow = nn.Linear(4, 1, dtype=torch.bfloat16)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.narrow((self.gain * self.words(ids)).bfloat16()).float()


@BOTH
def test_gradients_of_every_kind(name: str) -> None:
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    expected = plain(RULES[name], 4)
    generator = torch.Generator().manual_seed(0)
    with Guard(model, optimizer, max_norm=RULES[name]) as guard:
        for number in range(STEPS):
            ids = torch.randint(0, 20, (8,), generator=generator)
            (model(ids).square().mean() * (1 + 4 * (number % 7 == 6))).backward()
            used = [p for p in model.parameters() if p.grad is not None]
            before = [_dense(p.grad).clone() for p in used]
            factors = expected.step([gradient.norm().item() for gradient in before])
            optimizer.step()
            for parameter, gradient, factor in zip(used, before, factors, strict=True):
                torch.testing.assert_close(
                    _dense(parameter.grad), gradient * factor, rtol=2e-2, atol=1e-6
                )
            optimizer.zero_grad()
        assert guard.actions == []
        assert [f for f in guard.findings if f.code == "HD001"] == []


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return (gradient.to_dense() if gradient.is_sparse else gradient).float()


def test_a_rule_can_serve_several_guards() -> None:
    """It is settings only: what one run has learned the next does not know."""
    rule = ZClip(warmup=3)
    outcomes = []
    for _ in range(2):
        model = make_net()
        optimizer = sgd(model)
        with Guard(model, optimizer, max_norm=rule) as guard:
            for batch in guard(batches(12)):
                step(model, optimizer, batch)
            outcomes.append((learned(guard)["0"], state_of(model, optimizer)))
    for one, other in zip(*outcomes, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, "1.0", AdaGC, [1.0], {"z": 2.5}])
def test_what_is_no_limit_is_refused(wrong: Any) -> None:
    model = make_net()
    with pytest.raises(UsageError, match=r"positive number.*headway\.AdaGC\(\).*got"):
        Guard(model, sgd(model), max_norm=wrong)


@pytest.mark.parametrize("fine", [1, 0.5, math.inf, torch.tensor(1.0)])
def test_every_positive_number_is_a_limit(fine: Any) -> None:
    model = make_net()
    Guard(model, sgd(model), max_norm=fine).close()
