"""A closed guard leaves nothing behind: torch is as before, and nothing is kept alive."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad

from headway import Guard
from headway.torch_adapters import patching


def patched() -> dict[str, Any]:
    return {
        "backward": torch.autograd.backward,
        "total norm": clip_grad._get_total_norm,
        "clip": clip_grad._clip_grads_with_norm_,
        "scale": GradScaler.scale,
        "scaler step": GradScaler.step,
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] is other[name] for name in one)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = patched()
    yield
    assert same(before, patched())
    assert patching._listeners == ()


def make() -> tuple[Any, torch.optim.Optimizer]:
    model = make_net()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        squared_error(model, batch).backward()
        clip_grad.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def test_functions_of_torch_are_the_originals_again() -> None:
    before = patched()
    guard = Guard(*make())
    assert not any(patched()[name] is before[name] for name in before)
    guard.close()
    assert same(before, patched())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first in first out", "last in first out"])
def test_the_last_of_two_guards_puts_them_back(order: tuple[int, int]) -> None:
    before = patched()
    guards = [Guard(*make()), Guard(*make())]
    guards[order[0]].close()
    assert not same(before, patched())
    guards[order[1]].close()
    assert same(before, patched())


def test_somebody_elses_patch_over_ours_stays() -> None:
    """Another tool patched backward after us: it keeps its patch, and calls still go through."""
    calls: list[int] = []
    original = torch.autograd.backward
    model, optimizer = make()
    guard = Guard(model, optimizer)
    ours = torch.autograd.backward

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        guard.close()
        assert torch.autograd.backward is theirs
        train(model, optimizer, batches(2))
    finally:
        torch.autograd.backward = original
    assert calls == [1, 1]


def test_hooks_of_the_optimizer_are_gone() -> None:
    model, optimizer = make()
    guard = Guard(model, optimizer)
    train(model, optimizer, guard(batches(3)))
    guard.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")


def test_the_model_never_gets_a_hook() -> None:
    model, optimizer = make()
    with Guard(model, optimizer) as guard:
        train(model, optimizer, guard(batches(3)))
        for module in model.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
            assert not module._backward_hooks
        assert all(not parameter._backward_hooks for parameter in model.parameters())


def test_after_closing_steps_are_not_watched(tmp_path: Path) -> None:
    model, optimizer = make()
    guard = Guard(model, optimizer)
    guard.close()
    (squared_error(model, batches(1)[0]) * float("nan")).backward()
    optimizer.step()
    assert not torch.isfinite(model.head.weight).all()
    assert guard.actions == []


def leftovers(run_dir: Path | None, *, bad: bool) -> list[weakref.ref[Any]]:
    """A whole training in a frame of its own; what might still be alive afterwards."""
    model, optimizer = make()
    scaler = GradScaler("cpu")
    guard = Guard(model, optimizer, scaler=scaler, run_dir=run_dir)
    last: Any = None
    for number, (x, y) in enumerate(guard(batches(12))):
        guard.backward(squared_error(model, (x, y)) * (float("nan") if bad and number == 7 else 1))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        last = x
    guard.close()
    parameters = [weakref.ref(parameter) for parameter in model.parameters()]
    whole = [model, optimizer, guard, guard._session, scaler, last]
    return [*parameters, *(weakref.ref(item) for item in whole)]


@pytest.mark.parametrize("bad", [False, True], ids=["healthy", "with a held step"])
@pytest.mark.parametrize("written", [False, True], ids=["in memory", "written down"])
def test_nothing_is_kept_alive(written: bool, bad: bool, tmp_path: Path) -> None:
    refs = leftovers(tmp_path if written else None, bad=bad)
    gc.collect()
    assert [type(ref()).__name__ for ref in refs if ref() is not None] == []


def test_a_guard_that_nobody_closed_goes_with_its_model() -> None:
    """A notebook cell run again and again: the models before must not stay in memory."""

    def forgotten() -> list[weakref.ref[Any]]:
        model, optimizer = make()
        guard = Guard(model, optimizer)
        train(model, optimizer, guard(batches(3)))
        return [weakref.ref(model), weakref.ref(optimizer), weakref.ref(guard)]

    refs = forgotten()
    gc.collect()
    assert [type(ref()).__name__ for ref in refs if ref() is not None] == []


def test_a_guard_the_user_dropped_still_guards() -> None:
    """`Guard(model, optimizer)` without a name for it: the optimizer keeps it."""
    model, optimizer = make()
    Guard(model, optimizer)
    gc.collect()
    before = state_of(model, optimizer)
    (squared_error(model, batches(1)[0]) * float("nan")).backward()
    optimizer.step()
    assert_same(before, state_of(model, optimizer))
    for hook in list(optimizer._optimizer_step_pre_hooks.values()):
        hook.__wrapped__.__self__.close()  # type: ignore[attr-defined]


def test_watched_objects_can_be_copied_and_saved(tmp_path: Path) -> None:
    model, optimizer = make()
    with Guard(model, optimizer) as guard:
        train(model, optimizer, guard(batches(3)))
        twin = copy.deepcopy(model)
        assert_same(dict(model.state_dict()), dict(twin.state_dict()))
        pickle.dumps(model)
        torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
        other = copy.deepcopy(optimizer)
        assert not other._optimizer_step_pre_hooks


def test_checkpoints_hold_nothing_of_ours() -> None:
    (model, optimizer), (clean, clean_optimizer) = make(), make()
    with Guard(model, optimizer) as guard:
        train(model, optimizer, guard(batches(5)))
        train(clean, clean_optimizer, batches(5))
        assert_same(dict(clean.state_dict()), dict(model.state_dict()))
        assert optimizer.state_dict().keys() == clean_optimizer.state_dict().keys()
        assert optimizer.param_groups[0].keys() == clean_optimizer.param_groups[0].keys()
