"""The trace itself: what it keeps, what it survives, and that it changes nothing."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.replay_runs import run_backward, scene_of, traced
from torch import Tensor, nn

from headway.explain import bad_results, locate, origin
from headway.explain.trace import Trace


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def run(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_changes_no_number() -> None:
    model, x = Small(), torch.rand(6, 4)
    plain = run(model, x)
    with Trace(scene_of(model, x)) as trace:
        traced_ = run(model, x)
        after = torch.rand(3)
    torch.manual_seed(3)
    model(x)
    assert trace.errors == []
    for one, other in zip(plain, traced_, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(after, torch.rand(3))


def test_entered_in_one_function_and_left_in_another() -> None:
    model, x = Small(), torch.rand(6, 4)
    trace = Trace(scene_of(model, x))

    def batches() -> Iterator[Tensor]:
        trace.__enter__()
        yield x
        trace.__exit__(None, None, None)

    for batch in batches():
        run_backward(trace, torch.log(model(batch) * 0).mean())
    calls = len(trace.calls)
    model(x)
    assert len(trace.calls) == calls
    assert locate.find_origins(trace, scene_of(model, x))[0].op == "log"


def test_leaves_no_hook_and_no_mode_behind() -> None:
    model, x = Small(), torch.rand(6, 4)
    with pytest.raises(RuntimeError, match="of the step"), Trace(scene_of(model, x)):
        raise RuntimeError("of the step")
    assert all(not unit._forward_hooks and not unit._forward_pre_hooks for unit in model.modules())
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_keeps_no_tensor_alive() -> None:
    model, x = Small(), torch.rand(6, 4)
    kept: list[weakref.ref[Tensor]] = []
    trace = Trace(scene_of(model, x))
    with trace:
        out = model(x)
        bad = torch.log(out * 0)
        copy = bad.clone()
        kept += [weakref.ref(out), weakref.ref(bad), weakref.ref(copy)]
        run_backward(trace, copy.mean())
        del out, bad, copy
        gc.collect()
        assert [ref() for ref in kept] == [None, None, None]
    assert locate.find_origins(trace, scene_of(model, x))[0].op == "log"


@pytest.mark.slow
def test_memory_is_given_back_during_the_step() -> None:
    def resident() -> int:
        """Without the pages of libraries, which are mapped at their first use."""
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) << 10

    model, x = Small(), torch.rand(6, 4)
    with Trace(scene_of(model, x)):
        torch.zeros(4 << 20).log_()
        before = resident()
        for _ in range(8):
            torch.zeros(4 << 20).log_()
        assert resident() - before < 88 << 20  # of 128 MiB


def test_an_error_of_its_own_is_noted_and_the_step_goes_on(monkeypatch: Any) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("of the tool")

    monkeypatch.setattr(bad_results.BadResultInspector, "examine", fail)
    model, x = Small(), torch.rand(6, 4)
    with Trace(scene_of(model, x)) as trace:
        run_backward(trace, torch.log(model(x) * 0).mean())
        trace.gradients_ready(list(model.parameters()))
    assert any("of the tool" in error for error in trace.errors)
    locate.find_origins(trace, scene_of(model, x))


def test_a_origin_that_cannot_be_explained_is_still_found(monkeypatch: Any) -> None:
    def fail(call: Any) -> Any:
        raise ValueError("of the explanation")

    monkeypatch.setattr(origin, "classify_origin", fail)
    model, x = Small(), torch.rand(6, 4)
    with Trace(scene_of(model, x)) as trace:
        run_backward(trace, torch.log(model(x) * 0).mean())
    found_origin = locate.find_origins(trace, scene_of(model, x))[0]
    assert (found_origin.op, found_origin.kind) == ("log", "unknown")
    assert any("of the explanation" in error for error in trace.errors)


def test_an_error_of_the_step_passes_through() -> None:
    model = Small()
    with (
        pytest.raises(RuntimeError, match="shapes"),
        Trace(scene_of(model, torch.rand(6, 4))),
    ):
        model(torch.rand(6, 5))


def test_gradients_are_looked_at_without_being_told_of() -> None:
    model, x = nn.Linear(4, 1), torch.rand(6, 4)
    scene = scene_of(model, x)
    with Trace(scene) as trace:
        torch.sqrt(model(x) * 0).mean().backward()
    found_origin = locate.find_origins(trace, scene)[0]
    assert (found_origin.op, found_origin.phase) == ("sqrt", "backward")
    assert found_origin.reached == ("weight", "bias")


def test_modules_of_two_models() -> None:
    first, second, x = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.rand(6, 4)
    scene = scene_of(first, x)
    scene.models = [first, second]
    with Trace(scene) as trace:
        run_backward(trace, second(first(x)).mean())
    paths = {call.module.path for call in trace.calls if call.phase == "forward"}
    assert {"model0", "model1.0", "model1.1"} <= paths


class TestUnusualTensors:
    def test_sparse_gradients(self) -> None:
        model = nn.Embedding(10, 3, sparse=True)
        x = torch.tensor([1, 2, 3])
        found = traced(model, x, lambda model, x: torch.sqrt(model(x) * 0).mean())
        assert (found.origin.op, found.origin.reached) == ("sqrt", ("weight",))

    def test_complex_numbers(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            spectrum = torch.fft.rfft(model(x))
            return torch.log(spectrum * 0).abs().mean()

        assert traced(nn.Linear(4, 8), torch.rand(6, 4), compute).origin.op == "log"

    def test_nested_tensors_are_passed_by(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            nested = torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)
            return torch.log(model(x) * 0).mean() + nested.values().mean()

        found_origin = traced(nn.Linear(4, 8), torch.rand(6, 3, 4), compute).origin
        assert found_origin.op == "log"

    def test_higher_order_op(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            x = torch.cond(x.mean() > 0, lambda x: x * 2, lambda x: x * 3, (x,))
            return torch.log(model(x) * 0).mean()

        assert traced(nn.Linear(4, 8), torch.rand(6, 4), compute).origin.op == "log"

    def test_per_sample_gradients(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            parameters = dict(model.named_parameters())

            def one(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
                out = torch.func.functional_call(model, parameters, (sample[None],))
                return torch.sqrt(out * 0).sum()

            grads = torch.func.vmap(torch.func.grad(one), (None, 0))(parameters, x)
            return model(x).mean() + grads["weight"].mean()

        found_origin = traced(nn.Linear(4, 8), torch.rand(6, 4), compute).origin
        assert found_origin.op in ("sqrt", "div", "mul")


def test_gradient_scaler_on_the_cpu() -> None:
    model, x = nn.Linear(4, 1), torch.rand(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scene = scene_of(model, x, scaler=scaler)
    scene.optimizers = [optimizer]
    with Trace(scene) as trace:
        loss = F.mse_loss(model(x), torch.zeros(6, 1))
        scaled = scaler.scale(loss)
        trace.backward_begins([scaled], {"fit": loss})
        scaled.backward()
        trace.gradients_ready(list(model.parameters()))
    assert model.weight.grad is not None
    expected = float(model.weight.grad.norm()) / 1024
    assert trace.errors == []
    assert math.isclose(trace.ends.norms["weight"], expected, rel_tol=1e-5)


def test_sum_that_overflows_is_no_bad_number() -> None:
    def compute(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * 0 + torch.full((6, 8), 3e38)).amax() * 0 + torch.sqrt(model(x) * 0).sum()

    found = traced(nn.Linear(4, 8), torch.rand(6, 4), compute)
    assert [found_origin.op for found_origin in found.origins] == ["sqrt"]
