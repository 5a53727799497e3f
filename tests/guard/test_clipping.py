"""When the user clips: the norm on record is the one before, and a NaN keeps its owner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from support.paired_trainings import column_by_name, headers_of, steps_of
from support.trainings import Batch, Net, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # before any guard exists

from headway import Guard

STEPS = 12
MAX_NORM = 0.5

Clip = Callable[[Net], None]


def norms_of(model: nn.Module) -> dict[str, float]:
    return {
        name: parameter.grad.norm().item()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def total(norms: dict[str, float]) -> float:
    return math.sqrt(sum(norm**2 for norm in norms.values()))


def clip_all(net: Net) -> None:
    clip_grad_norm_(net.parameters(), MAX_NORM)


def clip_backwards(net: Net) -> None:
    clip_grad_norm_(list(net.parameters())[::-1], MAX_NORM)


def clip_in_two(net: Net) -> None:
    clip_grad_norm_(net.inner.parameters(), MAX_NORM)
    clip_grad_norm_([*net.norm.parameters(), *net.head.parameters()], MAX_NORM)


def clip_a_part(net: Net) -> None:
    clip_grad_norm_(net.inner.parameters(), MAX_NORM)


def clip_one_by_one(net: Net) -> None:
    for parameter in net.parameters():
        clip_grad_norm_(parameter, MAX_NORM)


def clip_twice(net: Net) -> None:
    clip_grad_norm_(net.parameters(), 2 * MAX_NORM)
    clip_grad_norm_(net.parameters(), MAX_NORM)


def clip_with_l1(net: Net) -> None:
    clip_grad_norm_(net.parameters(), MAX_NORM, norm_type=1)


def clip_without_foreach(net: Net) -> None:
    clip_grad_norm_(net.parameters(), MAX_NORM, foreach=False)


def clip_in_two_calls(net: Net) -> None:
    """The two halves of clip_grad_norm_, as they are offered since torch 2.6."""
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    torch.nn.utils.clip_grads_with_norm_(net.parameters(), MAX_NORM, norm)


WAYS: dict[str, Clip] = {
    way.__name__: way
    for way in (
        clip_all,
        clip_backwards,
        clip_in_two,
        clip_a_part,
        clip_one_by_one,
        clip_twice,
        clip_with_l1,
        clip_without_foreach,
    )
}


def run(
    clip: Clip, model: Net, optimizer: torch.optim.Optimizer, loader: Iterable[Batch]
) -> list[dict[str, float]]:
    """A training with clipping; the gradient norms of each step before it."""
    before = []
    for batch in loader:
        squared_error(model, batch).backward()
        before.append(norms_of(model))
        clip(model)
        optimizer.step()
        optimizer.zero_grad()
    return before


@pytest.mark.parametrize("way", WAYS)
def test_the_norm_on_record_is_the_one_before_clipping(way: str, tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        expected = run(WAYS[way], model, optimizer, guard(batches(STEPS)))
    steps = steps_of(tmp_path)
    assert [step.values["grad_norm"] for step in steps] == pytest.approx(
        [total(norms) for norms in expected], rel=1e-5
    )
    for at in (0, 10):
        column = column_by_name(steps[at], "param/grad_norm", headers_of(tmp_path)[-1])
        assert column == pytest.approx(expected[at], rel=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_clipping_is_left_as_it_is(way: str) -> None:
    outcomes = []
    for guarded in (True, False):
        model = make_net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        guard = Guard(model, optimizer) if guarded else None
        run(WAYS[way], model, optimizer, guard(batches(STEPS)) if guard else batches(STEPS))
        if guard:
            guard.close()
        outcomes.append(state_of(model, optimizer))
    assert_same(*outcomes)


def test_the_factor_is_on_record(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        expected = run(clip_all, model, optimizer, guard(batches(STEPS)))
    factors = [step.values["clip_coef"] for step in steps_of(tmp_path)]
    assert factors == pytest.approx(
        [min(1.0, MAX_NORM / (total(norms) + 1e-6)) for norms in expected], rel=1e-5
    )
    assert min(factors) < 1


def test_a_run_without_clipping_has_no_factor_on_record(tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        run(lambda _: None, model, optimizer, guard(batches(3)))
    assert all("clip_coef" not in step.values for step in steps_of(tmp_path))


@pytest.mark.parametrize("max_norm", [0.5, 1e6], ids=["clips", "never clips"])
def test_max_norm_is_on_record_too(max_norm: float, tmp_path: Path) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path, max_norm=max_norm) as guard:
        expected = run(lambda _: None, model, optimizer, guard(batches(3)))
    for step, norms in zip(steps_of(tmp_path), expected, strict=True):
        assert step.values["grad_norm"] == pytest.approx(total(norms), rel=1e-5)
        assert step.values["clip_coef"] == pytest.approx(
            min(1.0, max_norm / total(norms)), rel=1e-4
        )


def test_a_norm_by_value_is_the_users_own_affair(tmp_path: Path) -> None:
    """clip_grad_value_ has no norm to observe: what it left is what the step sees."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(3)):
            squared_error(model, batch).backward()
            clip_grad_value_(model.parameters(), 0.01)
            left = total(norms_of(model))
            optimizer.step()
            optimizer.zero_grad()
    assert steps_of(tmp_path)[-1].values["grad_norm"] == pytest.approx(left, rel=1e-5)


def spoil(model: Net, name: str) -> None:
    gradient = dict(model.named_parameters())[name].grad
    assert gradient is not None
    gradient.view(-1)[0] = math.nan


@pytest.mark.parametrize("way", ["clip_all", "clip_backwards", "clip_in_two", "clip_one_by_one"])
@pytest.mark.parametrize("name", ["inner.weight", "norm.bias", "head.bias"])
def test_a_nan_is_put_down_to_the_one_parameter_it_was_in(
    name: str, way: str, tmp_path: Path
) -> None:
    """Clipping by a NaN norm makes every gradient NaN; the record knows better."""
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(8))):
            before = state_of(model, optimizer)
            squared_error(model, batch).backward()
            if number == 5:
                spoil(model, name)
            WAYS[way](model)
            optimizer.step()
            optimizer.zero_grad()
            if number == 5:
                assert_same(before, state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [5]
    column = column_by_name(steps_of(tmp_path)[5], "param/grad_norm", headers_of(tmp_path)[-1])
    assert [each for each, norm in column.items() if not math.isfinite(norm)] == [name]
    (finding,) = (finding for finding in guard.findings if finding.code == "HD201")
    assert name in finding.message


def test_frozen_parameters_among_the_clipped_ones(tmp_path: Path) -> None:
    """`clip_grad_norm_(model.parameters())` where the optimizer has the trainable ones only."""
    model = make_net()
    model.inner.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        expected = run(clip_all, model, optimizer, guard(batches(STEPS)))
    assert [step.values["grad_norm"] for step in steps_of(tmp_path)] == pytest.approx(
        [total(norms) for norms in expected], rel=1e-5
    )
    assert all("clip_coef" in step.values for step in steps_of(tmp_path))


def test_parameter_groups_in_another_order_than_the_model(tmp_path: Path) -> None:
    """Decay and no decay, as everybody writes it."""
    model = make_net()
    decay = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}], lr=1e-2
    )
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        expected = run(clip_all, model, optimizer, guard(batches(STEPS)))
    assert [step.values["grad_norm"] for step in steps_of(tmp_path)] == pytest.approx(
        [total(norms) for norms in expected], rel=1e-5
    )
    column = column_by_name(steps_of(tmp_path)[0], "param/grad_norm", headers_of(tmp_path)[-1])
    assert column == pytest.approx(expected[0], rel=1e-3)


def test_two_optimizers_clipped_together(tmp_path: Path) -> None:
    model = make_net()
    optimizers = [
        torch.optim.SGD(model.inner.parameters(), lr=1e-2),
        torch.optim.SGD([*model.norm.parameters(), *model.head.parameters()], lr=1e-2),
    ]
    expected = []
    with Guard(model, optimizers, run_dir=tmp_path) as guard:
        for batch in guard(batches(STEPS)):
            squared_error(model, batch).backward()
            norms = norms_of(model)
            inner = {name: norm for name, norm in norms.items() if name.startswith("inner")}
            expected.append(
                (total(inner), total({k: v for k, v in norms.items() if k not in inner}))
            )
            clip_all(model)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    found = [(step.values["grad_norm"], step.values["grad_norm#1"]) for step in steps_of(tmp_path)]
    for pair, wanted in zip(found, expected, strict=True):
        assert pair == pytest.approx(wanted, rel=1e-5)


def test_gradients_changed_after_clipping_are_measured_anew(tmp_path: Path) -> None:
    """Whoever multiplies gradients after clipping them steps with something else: that counts."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def clip_and_multiply(net: Net) -> None:
        clip_all(net)
        for parameter in net.parameters():
            parameter.grad.mul_(3.0)

    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        run(clip_and_multiply, model, optimizer, guard(batches(3)))
    norms = [step.values["grad_norm"] for step in steps_of(tmp_path)]
    assert norms == pytest.approx([3 * MAX_NORM] * 3, rel=1e-3)


def test_a_spike_is_seen_although_the_user_clips_it_away() -> None:
    """The direction of a spike is as bad as its length: clipped or not, it is held."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(40, size=64))):
            (squared_error(model, batch) * (1e4 if number == 30 else 1)).backward()
            clip_all(model)
            optimizer.step()
            optimizer.zero_grad()
    assert [action.step for action in guard.actions] == [30]


def test_a_limit_that_is_itself_nan_is_held() -> None:
    """An adaptive limit from a history with a NaN in it: norms are fine, gradients are not."""
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(8))):
            before = state_of(model, optimizer)
            squared_error(model, batch).backward()
            clip_grad_norm_(model.parameters(), math.nan if number == 5 else 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if number == 5:
                assert_same(before, state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [5]


def test_the_users_clipping_and_max_norm_do_not_clip_twice(tmp_path: Path) -> None:
    """What the user has clipped is within the limit already."""
    states = []
    for options in ({"max_norm": MAX_NORM, "run_dir": tmp_path}, {}):
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with Guard(model, optimizer, **options) as guard:  # type: ignore[arg-type]
            norms = run(clip_all, model, optimizer, guard(batches(STEPS)))
        states.append(state_of(model, optimizer))
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name])
    assert [step.values["clip_coef"] for step in steps_of(tmp_path)] == pytest.approx(
        [min(1.0, MAX_NORM / total(each)) for each in norms], rel=1e-4
    )


def test_clipping_at_every_micro_batch(tmp_path: Path) -> None:
    """Not wise, but done: the losses are still summed, and the gradients were never cleared."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(8))):
            loss = squared_error(model, batch)
            loss.backward()
            losses.append(loss.item())
            left = total(norms_of(model))
            clip_all(model)
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    steps = steps_of(tmp_path)
    assert [step.values["micro_batches"] for step in steps] == [4, 4]
    assert [step.values["loss"] for step in steps] == pytest.approx(
        [sum(losses[:4]), sum(losses[4:])]
    )
    assert steps[-1].values["grad_norm"] == pytest.approx(left, rel=1e-5)


def test_a_batch_the_user_throws_away_after_clipping_is_forgotten(tmp_path: Path) -> None:
    """`if norm > limit: zero_grad(); continue`: the next step has norms and losses of its own."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    kept = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(9))):
            loss = squared_error(model, batch)
            loss.backward()
            norm = clip_grad_norm_(model.parameters(), MAX_NORM)
            if number % 3 == 1:
                optimizer.zero_grad()
                continue
            kept.append((loss.item(), norm.item()))
            optimizer.step()
            optimizer.zero_grad()
    found = [(step.values["loss"], step.values["grad_norm"]) for step in steps_of(tmp_path)]
    assert found == [pytest.approx(pair, rel=1e-6) for pair in kept]


def test_clipping_something_else_is_none_of_our_business() -> None:
    stranger = nn.Linear(3, 1)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        stranger(torch.ones(1, 3)).sum().backward()
        returned = clip_grad_norm_(stranger.parameters(), 0.1)
        assert isinstance(returned, Tensor)
        assert returned.item() == pytest.approx(2.0)
        assert total(norms_of(stranger)) == pytest.approx(0.1, rel=1e-4)
        assert guard.findings == []


def test_no_gradients_to_clip() -> None:
    model = make_net()
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2)):
        assert clip_grad_norm_(model.parameters(), 1.0).item() == 0.0


def test_error_if_nonfinite_still_raises() -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer):
        (squared_error(model, batches(1)[0]) * math.nan).backward()
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
