"""Switches of torch's: plain attention, no compiler, deterministic algorithms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.remedy_runs import attempt, bits, leaves_nothing, run, scene_of
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from headway.explain.counterfactual import select_remedies
from headway.explain.explanation import Origin
from headway.explain.remedies.float32 import Fp32Island
from headway.explain.remedies.one_line_remedies import (
    Deterministic,
    Eager,
    GuardInput,
    MathAttention,
)
from headway.torch_adapters.frames import Location

PLACE = Location("model.py", 12, source="y = F.scaled_dot_product_attention(q, k, v)")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v)


class SickKernel(TorchDispatchMode):
    """A fused attention that gives NaN, as some have done on some cards."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "flash_attention" in str(func) and "backward" not in str(func):
            return (out[0] * float("nan"), *out[1:])
        return out


def test_plain_attention() -> None:
    model = Attention()
    scene = scene_of(model, torch.randn(2, 3, 4))

    def step(batch: Tensor) -> Tensor:
        with SickKernel():
            return model(batch).square().mean()

    origin = Origin("unknown", "", "forward", "scaled_dot_product_flash_attention", place=PLACE)
    assert not run(scene, step).finite
    remedy = select_remedies(origin, None, scene, "deterministic")[0]
    assert remedy.key == "math-attention"
    assert "sdpa_kernel(SDPBackend.MATH)` around model.py:12" in remedy.text
    assert attempt(scene, step, remedy).tried == "cured"

    def well(batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    def by_hand(batch: Tensor) -> Tensor:
        with SickKernel(), sdpa_kernel(SDPBackend.MATH):
            return model(batch).square().mean()

    leaves_nothing(scene, well, remedy, scene)
    assert bits(run(scene, by_hand)) == bits(run(scene, step, remedy))


def test_plain_attention_does_not_cure_something_else() -> None:
    model = Attention()
    scene = scene_of(model, torch.randn(2, 3, 4))
    origin = Origin("unknown", "", "forward", "scaled_dot_product_flash_attention", place=PLACE)

    def step(batch: Tensor) -> Tensor:
        return (model(batch).square().mean() * 0).log()

    assert attempt(scene, step, MathAttention(origin)).tried == "not cured"
    assert MathAttention.fitting(Origin("unknown", "", "forward", "mm")) is None


@pytest.fixture
def miscompiled() -> Any:
    """A model whose compiler is wrong: the graph it makes gives NaN."""

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(out * float("nan") for out in graph(*args))

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    yield plain, torch.compile(plain, backend=wrong)
    torch._dynamo.reset()


def test_without_the_compiler(miscompiled: Any) -> None:
    plain, compiled = miscompiled
    scene = scene_of(compiled, torch.randn(5, 3))

    def step(batch: Tensor) -> Tensor:
        return compiled(batch).square().mean()

    assert not run(scene, step).finite
    for nature in ("compiler", "unknown"):
        remedy = select_remedies(None, None, scene, nature)[0]
        assert isinstance(remedy, Eager)
    assert attempt(scene, step, remedy).tried == "cured"
    assert not run(scene, step).finite  # compiled again
    by_hand = run(scene_of(plain, *scene.batches), lambda batch: plain(batch).square().mean())
    assert by_hand.losses == run(scene, step, remedy).losses
    with pytest.raises(ZeroDivisionError), remedy.applied(scene):
        raise ZeroDivisionError
    assert not run(scene, step).finite
    assert select_remedies(None, None, scene, "deterministic") == []


def test_without_the_compiler_the_fault_may_still_be_there(miscompiled: Any) -> None:
    _, compiled = miscompiled
    scene = scene_of(compiled, torch.randn(5, 3))
    trial = attempt(scene, lambda batch: (compiled(batch).mean() * 0).log(), Eager())
    assert trial.tried == "not cured"


def test_an_island_in_a_compiled_model_is_tried_and_not_kept() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].weight.mul_(1e4)
    compiled = torch.compile(net, backend="eager")

    def step(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return compiled(batch).float().square().mean()

    scene = scene_of(compiled, torch.full((5, 3), 100.0))
    assert not run(scene, step).finite
    origin = Origin("overflow", "", "forward", "linear", module="0", autocast="float16")
    remedy = Fp32Island.fitting(origin, scene)
    assert remedy is not None
    assert not remedy.keepable
    assert attempt(scene, step, remedy).tried == "cured"
    assert not run(scene, step).finite
    torch._dynamo.reset()


def test_a_line_inside_a_compiled_model_is_guarded() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(x * self.weight)

    compiled = torch.compile(Root(), backend="eager")
    scene = scene_of(compiled, torch.tensor([0.0, 1.0]))
    line = Root.forward.__code__.co_firstlineno + 1
    place = Location(__file__, line, source="return torch.sqrt(x * self.weight)")
    remedy = GuardInput.fitting(Origin("sqrt-at-zero", "", "backward", "sqrt", place=place))
    assert remedy is not None
    assert not run(scene, lambda batch: compiled(batch).sum()).finite
    assert attempt(scene, lambda batch: compiled(batch).sum(), remedy).tried == "cured"
    assert not run(scene, lambda batch: compiled(batch).sum()).finite
    torch._dynamo.reset()


def test_deterministic_algorithms() -> None:
    model = nn.Linear(3, 1)
    scene = scene_of(model, torch.randn(4, 3))
    seen = []

    def step(batch: Tensor) -> Tensor:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return model(batch).square().mean()

    remedy = Deterministic()
    assert attempt(scene, step, remedy).tried == "cured"
    assert seen == [True]
    leaves_nothing(scene, step, remedy, scene)
    torch.use_deterministic_algorithms(True)
    try:
        run(scene, step, remedy)
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    trial = attempt(scene, lambda batch: (model(batch).mean() * 0).log(), remedy)
    assert trial.tried == "not cured"


def test_what_did_not_fail_again_is_not_cured_by_anything() -> None:
    scene = scene_of(nn.Linear(3, 1), torch.randn(4, 3))
    origin = Origin("log-of-zero", "", "forward", "log", place=PLACE)
    (remedy,) = select_remedies(origin, None, scene, "transient")
    assert remedy.key == "deterministic"
    trial = attempt(scene, lambda batch: scene.models[0](batch).mean(), remedy)
    assert trial.tried == "not tried"
    assert "does not fail again" in trial.why
