"""What communication hooks remember: kept, put back, stored."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from headway.errors import UsageError
from headway.torch_adapters.process_groups import hook_states
from headway.torch_adapters.process_groups.hook_states import HookStates


def watch(patch: pytest.MonkeyPatch, *states: Any) -> HookStates:
    found = [(state, torch.device("cpu")) for state in states]
    patch.setattr(hook_states, "find_hook_states", lambda models: found)
    return HookStates([nn.Linear(1, 1)])


def test_a_counter_alone_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """PowerSGD counts its first steps before it has a tensor."""
    state = PowerSGDState(None, start_powerSGD_iter=10)
    hooks = watch(monkeypatch, state)
    state.iter = 4
    hooks.renew()
    state.iter = 5
    hooks.restore()
    assert state.iter == 4


def test_random_numbers_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PowerSGDState(None, warm_start=False)
    hooks = watch(monkeypatch, state)
    drawn = state.rng.randint(1_000_000)
    hooks.restore()
    assert state.rng.randint(1_000_000) == drawn


class Nested:
    def __init__(self) -> None:
        self.group = None
        self.history = [torch.ones(2), torch.ones(3)]
        self.by_bucket = {0: {"error": torch.zeros(2)}}
        self.plan = lambda: None


def test_nested_tensors_are_put_back_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Nested()
    hooks = watch(monkeypatch, state)
    assert hooks.unknown() == []
    first, inner = state.history[0], state.by_bucket[0]
    first.fill_(torch.nan)
    state.history.append(torch.ones(1))
    inner["error"].fill_(torch.nan)
    state.by_bucket[1] = {"error": torch.ones(1)}
    hooks.restore()
    assert state.history[0] is first
    assert torch.equal(first, torch.ones(2))
    assert len(state.history) == 2
    assert state.by_bucket == {0: inner}
    assert torch.equal(inner["error"], torch.zeros(2))


def test_what_cannot_be_copied_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Nested()
    state.extra = {"codes": object()}  # type: ignore[attr-defined]
    assert watch(monkeypatch, state).unknown() == ["Nested.extra"]


def test_a_stored_state_is_loaded_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PowerSGDState(None)
    state.error_dict[0], state.iter = torch.arange(3.0), 7
    state.rng.rand(5)
    file = io.BytesIO()
    torch.save(watch(monkeypatch, state).state_dict(), file)
    file.seek(0)
    other = PowerSGDState(None)
    watch(monkeypatch, other).load_state_dict(torch.load(file, weights_only=True))
    assert other.iter == 7
    assert torch.equal(other.error_dict[0], torch.arange(3.0))
    assert other.rng.rand() == state.rng.rand()


def test_another_number_of_hooks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = watch(monkeypatch, Nested()).state_dict()
    with pytest.raises(UsageError, match="have 1 and 2 communication hooks"):
        watch(monkeypatch, Nested(), Nested()).load_state_dict(saved)
