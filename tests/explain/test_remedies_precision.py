"""Remedies against numbers that half precision cannot hold."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.remedy_runs import attempt, bits, leaves_nothing, operands, run, scene_of, switches
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.explain.counterfactual import select_remedies
from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.float32 import Fp32, Fp32Island
from headway.explain.remedies.one_line_remedies import Bf16
from headway.torch_adapters.autocast_regions import change_regions
from headway.torch_adapters.frames import Location

PLACE = Location("train.py", 41, "forward", "y = self.wide(x)")


class Net(nn.Module):
    """`wide` makes numbers beyond float16's range; what follows makes them small again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.narrow = nn.Linear(4, 4)
        self.wide = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            self.wide.weight.fill_(1000.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(small(self.wide(self.narrow(x)))))


def small(x: Tensor) -> Tensor:
    return x / (1 + x.abs().amax())


def autocast_step(model: nn.Module, **how: Any) -> Callable[[Tensor], Tensor]:
    def step(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", **{"dtype": torch.float16, **how}):
            return model(batch).float().square().mean()

    return step


def overflowing(**facts: Any) -> tuple[Net, FailingStep, Origin]:
    model = Net()
    scene = scene_of(model, torch.full((3, 4), 300.0), **facts)
    origin = Origin(
        "overflow", "", "forward", "linear", module="wide", place=PLACE, autocast="float16"
    )
    return model, scene, origin


def healthy(model: nn.Module) -> FailingStep:
    return scene_of(model, torch.linspace(-1, 1, 12).reshape(3, 4))


def named(key: str, origin: Origin, scene: FailingStep) -> StepRemedy:
    return next(r for r in select_remedies(origin, None, scene, "deterministic") if r.key == key)


def test_the_order_for_an_overflow_in_float16() -> None:
    _, scene, origin = overflowing()
    found = select_remedies(origin, None, scene, "deterministic")
    assert [remedy.key for remedy in found] == ["fp32-island", "bf16", "fp32", "smaller-rate"]


class WideOutside(Net):
    """The same, after the user did what the island's text says."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(x)
        with torch.autocast("cpu", enabled=False):
            y = self.wide(y.float())
        return self.head(self.drop(small(y)))


def test_an_island_under_autocast() -> None:
    model, scene, origin = overflowing()
    step = autocast_step(model)
    remedy = named("fp32-island", origin, scene)
    assert remedy.text == "Run `wide` outside autocast, in float32 (train.py:41)"
    assert not run(scene, step).finite
    assert attempt(scene, step, remedy).tried == "cured"
    leaves_nothing(scene, step, remedy, healthy(model))
    by_hand = WideOutside()
    edited = run(scene_of(by_hand, *scene.batches), autocast_step(by_hand))
    assert bits(edited) == bits(run(scene, step, remedy))


def test_an_island_around_another_module_does_not_cure() -> None:
    model, scene, _ = overflowing()
    trial = attempt(scene, autocast_step(model), Fp32Island("narrow", model.narrow))
    assert trial.tried == "not cured"
    assert trial.why == "the loss is still nan"


def test_an_island_that_the_step_does_not_come_to_is_not_credited() -> None:
    model, _, _ = overflowing()
    scene = healthy(model)
    trial = attempt(scene, autocast_step(model), Fp32Island("spare", nn.Linear(4, 4)))
    assert trial.tried == "not tried"


def test_an_island_is_kept_for_good_and_taken_back() -> None:
    model, scene, origin = overflowing()
    step = autocast_step(model)
    state, before = switches(scene), bits(run(healthy(model), step))
    remedy = named("fp32-island", origin, scene)
    assert remedy.keepable
    undo = remedy.keep(scene)
    assert run(scene, step).finite
    assert run(scene, step).finite
    undo()
    assert switches(scene) == state
    assert bits(run(healthy(model), step)) == before
    undo()  # twice does no harm
    assert switches(scene) == state


def test_an_island_keeps_clear_of_a_forward_that_was_replaced_before_and_after() -> None:
    model, scene, origin = overflowing()
    calls: list[str] = []
    theirs = model.wide.forward

    def first(x: Tensor) -> Tensor:
        calls.append("first")
        return theirs(x)

    model.wide.forward = first  # type: ignore[method-assign]
    undo = named("fp32-island", origin, scene).keep(scene)
    ours = model.wide.forward

    def second(x: Tensor) -> Tensor:
        calls.append("second")
        return ours(x)

    model.wide.forward = second  # type: ignore[method-assign]
    step = autocast_step(model)
    assert run(scene, step).finite
    undo()
    assert not run(scene, step).finite
    assert calls == ["second", "first"] * 2


def test_copies_of_a_model_with_an_island_run_their_own_weights() -> None:
    model, scene, origin = overflowing()
    undo = named("fp32-island", origin, scene).keep(scene)
    copied, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    undo()
    for other in (copied, loaded):
        with torch.no_grad():
            other.wide.weight.zero_()
            other.wide.bias.fill_(2.0)
        assert torch.equal(other.wide(torch.ones(1, 4)), torch.full((1, 4), 2.0))
        assert run(scene_of(other, *scene.batches), autocast_step(other)).finite
    assert not torch.equal(model.wide(torch.ones(1, 4)), torch.full((1, 4), 2.0))


def test_an_island_in_one_of_several_models() -> None:
    model, scene, origin = overflowing()
    several = replace(scene, models=[nn.Linear(2, 2), model])
    assert Fp32Island.fitting(origin, several) is None
    assert Fp32Island.fitting(replace(origin, module="model1.wide"), several) is not None


Pair = namedtuple("Pair", ["left", "right"])


class Rms(nn.Module):
    """Squares its input on the way to something small; also has a buffer, kwargs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.norm = nn.BatchNorm1d(4)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, *, scale: Tensor, flag: bool = True) -> Pair:
        assert flag
        self.seen.append(x.dtype)
        size = (x * self.weight).square().mean(-1, keepdim=True).sqrt()
        return Pair(self.norm(x / size) * scale, (size, torch.arange(3)))


class HalfNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.rms = Rms()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        scale = torch.ones(4, dtype=y.dtype)
        for _ in range(2):
            y = self.rms(y, scale=scale).left
        return self.last(y)


class HalfNetByHand(HalfNet):
    """`rms` kept in float32, its inputs cast and its output cast back."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        scale = torch.ones(4)
        for _ in range(2):
            y = self.rms(y.float(), scale=scale).left.half()
        return self.last(y)


def plain_step(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda batch: model(batch).float().square().mean()


def half_case() -> tuple[HalfNet, FailingStep, Origin]:
    model = HalfNet().half()
    batch = (1000 * torch.randn(3, 4, generator=torch.Generator().manual_seed(1))).half()
    place = Location("net.py", 9)
    inputs = operands(batch)
    origin = Origin("overflow", "", "forward", "pow", module="rms", place=place, inputs=inputs)
    return model, scene_of(model, batch), origin


def test_an_island_in_a_half_model() -> None:
    model, scene, origin = half_case()
    step = plain_step(model)
    remedy = named("fp32-island", origin, scene)
    assert "Keep `rms` in float32: `rms.float()`" in remedy.text
    assert not run(scene, step).finite
    model.rms.seen.clear()
    assert attempt(scene, step, remedy).tried == "cured"
    assert set(model.rms.seen) == {torch.float32}
    assert model.rms.weight.grad is not None
    assert model.rms.weight.grad.dtype is torch.float16
    by_hand = HalfNetByHand()
    by_hand.half().rms.float()
    edited = run(scene_of(by_hand, *scene.batches), plain_step(by_hand))
    assert edited.losses == run(scene, step, remedy).losses
    small = scene_of(model.eval(), torch.linspace(-1, 1, 12).reshape(3, 4).half())
    leaves_nothing(scene, step, remedy, small)


def test_running_statistics_go_on_inside_an_island() -> None:
    model, scene, origin = half_case()
    with named("fp32-island", origin, scene).applied(scene):
        model(scene.batches[0])
    running = model.rms.norm.running_mean
    assert running.dtype is torch.float16
    assert running.any()
    assert running.isfinite().all()


def test_an_island_leaves_outputs_alone_that_autocast_will_cast_anyway() -> None:
    seen: list[torch.dtype] = []
    model, scene, origin = overflowing()
    model.wide.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    run(scene, autocast_step(model), named("fp32-island", origin, scene))
    assert seen == [torch.float32]


def test_bfloat16_for_float16() -> None:
    model, scene, origin = overflowing()
    step = autocast_step(model)
    remedy = named("bf16", origin, scene)
    assert attempt(scene, step, remedy).tried == "cured"
    leaves_nothing(scene, step, remedy, healthy(model))
    edited = run(scene, autocast_step(model, dtype=torch.bfloat16))
    assert bits(edited) == bits(run(scene, step, remedy))


def test_bfloat16_in_a_region_that_is_already_open() -> None:
    model, scene, _ = overflowing()

    def step(batch: Tensor) -> Tensor:
        return model(batch).float().square().mean()

    with torch.autocast("cpu", dtype=torch.float16):
        before = bits(run(healthy(model), step))
        assert not run(scene, step).finite
        remedy = Bf16()
        inside = run(scene, step, remedy)
        assert torch.get_autocast_dtype("cpu") is torch.float16
        assert inside.finite
        assert remedy.engaged
        assert bits(run(healthy(model), step)) == before
    assert not torch.is_autocast_enabled("cpu")
    edited = run(scene, autocast_step(model, dtype=torch.bfloat16))
    assert inside.losses == edited.losses


def test_regions_of_the_deprecated_classes() -> None:
    model, scene, _ = overflowing()

    def step(batch: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            region = torch.cpu.amp.autocast(dtype=torch.float16)
        with region:
            return model(batch).float().square().mean()

    assert not run(scene, step).finite
    assert attempt(scene, step, Bf16()).tried == "cured"
    assert attempt(scene, step, Fp32(merely_autocast=True)).tried == "cured"


def test_bfloat16_is_only_for_float16() -> None:
    model, scene, _ = overflowing()
    assert attempt(scene, autocast_step(model, dtype=torch.bfloat16), Bf16()).tried == "not tried"
    keys = [r.key for r in select_remedies(half_case()[2], None, scene, "deterministic")]
    assert "bf16" not in keys
    plain = Origin("overflow", "", "forward", "linear", module="wide", place=PLACE)
    assert [r.key for r in select_remedies(plain, None, scene, "deterministic")] == ["smaller-rate"]


def test_bfloat16_does_not_cure_what_is_no_overflow() -> None:
    model, scene, _ = overflowing()

    def step(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(batch).float().square().mean() * (batch - batch).sum().log()

    assert attempt(scene, step, Bf16()).tried == "not cured"


@pytest.mark.parametrize("key", ["bf16", "fp32"])
def test_regions_are_changed_for_good_and_taken_back(key: str) -> None:
    model, scene, origin = overflowing()
    step = autocast_step(model)
    state, before = switches(scene), bits(run(healthy(model), step))
    remedy = named(key, origin, scene)
    assert remedy.keepable
    undo = remedy.keep(scene)
    assert run(scene, step).finite
    assert attempt(scene, step, Fp32(merely_autocast=True)).tried in ("cured", "not tried")
    assert run(scene, step).finite
    undo()
    assert switches(scene) == state
    assert bits(run(healthy(model), step)) == before


def test_changes_can_be_taken_back_in_any_order() -> None:
    scene = overflowing()[1]
    state = switches(scene)
    first = change_regions(lambda casting: casting._replace(dtype=torch.bfloat16))
    second = change_regions(lambda casting: casting._replace(enabled=False))
    first()
    with torch.autocast("cpu", dtype=torch.float16):
        assert not torch.is_autocast_enabled("cpu")
    second()
    second()
    assert switches(scene) == state


def test_everything_in_float32_under_autocast() -> None:
    model, scene, origin = overflowing()
    step = autocast_step(model)
    remedy = named("fp32", origin, scene)
    assert attempt(scene, step, remedy).tried == "cured"
    leaves_nothing(scene, step, remedy, healthy(model))
    edited = run(scene, autocast_step(model, enabled=False))
    assert bits(edited) == bits(run(scene, step, remedy))


def test_everything_in_float32_in_a_half_model() -> None:
    model, scene, origin = half_case()
    step = plain_step(model)
    remedy = named("fp32", origin, scene)
    assert not remedy.keepable
    with pytest.raises(ValueError, match="cannot stay active"):
        remedy.keep(scene)
    assert attempt(scene, step, remedy).tried == "cured"
    assert all(p.dtype is torch.float16 for p in model.parameters())
    by_hand = copy.deepcopy(model).float()
    edited = run(scene_of(by_hand, scene.batches[0].float()), plain_step(by_hand))
    trial = run(scene, step, remedy)
    assert edited.losses == pytest.approx(trial.losses, rel=1e-4)
    assert list(trial.norms.values()) == pytest.approx(list(edited.norms.values()), rel=1e-2)
    small = scene_of(model.eval(), torch.linspace(-1, 1, 12).reshape(3, 4).half())
    leaves_nothing(scene, step, remedy, small)


CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "half": lambda x: x.half(),
    "to": lambda x: x.to(torch.float16),
    "to keyword": lambda x: x.to(dtype=torch.float16),
    "to another": lambda x: x.to(torch.zeros((), dtype=torch.float16)),
    "type": lambda x: x.type(torch.float16),
    "type_as": lambda x: x.type_as(torch.zeros((), dtype=torch.float16)),
    "new zeros": lambda x: x.new_zeros(x.shape, dtype=torch.float16).copy_(x),
    "written into": lambda x: _written_into(x),
}


def _written_into(x: Tensor) -> Tensor:
    room = torch.zeros(x.shape, dtype=torch.float16)
    room[0] = x[0].half()
    room[1:].copy_(x[1:])
    return room


@pytest.mark.parametrize("cast", CASTS)
def test_casts_of_the_users_own_are_undone(cast: str) -> None:
    model = nn.Linear(4, 1)
    scene = scene_of(model, torch.full((3, 4), 100.0))

    def step(batch: Tensor) -> Tensor:
        x = CASTS[cast](model.weight * batch)
        assert x.to(x.dtype).dtype == x.dtype
        return (x * 1e5).float().tanh().mean() + (x * 1e5).square().mean().log().to(x.dtype)

    origin = Origin("overflow", "", "forward", "mul", inputs=operands(torch.ones(1).half()))
    assert not run(scene, step).finite
    remedy = Fp32.fitting(origin, scene)
    assert remedy is not None
    trial = attempt(scene, step, remedy)
    assert trial.tried == "cured", trial


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_in_float32(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind(4, 3, batch_first=True).half()
    scene = scene_of(model, torch.randn(2, 5, 4).half())

    def step(batch: Tensor) -> Tensor:
        out, _ = model(batch)
        return (out * 1e5).square().mean().float()

    remedy = Fp32(merely_autocast=False)
    assert not run(scene, step).finite
    trial = attempt(scene, step, remedy)
    assert trial.tried == "not cured"  # the gradient itself is too large for half weights
    assert not any(map(torch.isnan, map(torch.tensor, run(scene, step, remedy).losses)))


def test_a_half_transformer_in_float32() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).half()
    scene = scene_of(model, torch.randn(2, 5, 8).half())
    step = plain_step(model)
    assert run(scene, step).finite
    before = bits(run(scene, step))
    trial = run(scene, step, Fp32(merely_autocast=False))
    by_hand = copy.deepcopy(model).float()
    edited = run(scene_of(by_hand, scene.batches[0].float()), plain_step(by_hand))
    assert trial.losses == pytest.approx(edited.losses, rel=1e-5)
    assert bits(run(scene, step)) == before


def test_half_precision_in_a_checkpointed_forward() -> None:
    model = HalfNet().half()

    def step(batch: Tensor) -> Tensor:
        return checkpoint(model, batch, use_reentrant=False).float().square().mean()

    _, scene, origin = half_case()
    scene = scene_of(model, *scene.batches)
    assert not run(scene, step).finite
    for key in ("fp32-island", "fp32"):
        trial = attempt(scene, step, named(key, origin, scene))
        assert trial.tried == "cured", trial


def test_only_what_cannot_raise_is_tried_where_raising_would_end_the_training() -> None:
    _, scene, origin = overflowing(gentle=True)
    found = select_remedies(origin, None, scene, "deterministic")
    assert [remedy.key for remedy in found][:3] == ["fp32-island", "bf16", "fp32"]
    assert all(remedy.why_not for remedy in found)
