"""The state of a user's communication hook, such as PowerSGD's error feedback.

A bad gradient corrupts it before the step is judged, and with it every later gradient. It is
copied after a good step and put back when an update is skipped, as buffers are. Snapshots contain
it, too.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.errors import UsageError
from headway.torch_adapters.compat import tensor_version
from headway.torch_adapters.nested_state import StatePath, find_tensors, map_with_paths
from headway.torch_adapters.process_groups.local_gradients import find_hook_states

RANDOM = "$random"
"""Marks the state of a NumPy generator."""


class HookStates:
    """The states of the communication hooks of some models."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._states = find_hook_states(models)
        self._kept: list[dict[str, Any]] = []
        self._known: Any = None
        self.renew()

    def __len__(self) -> int:
        return len(self._states)

    def unknown(self) -> list[str]:
        """Attributes of the states that cannot be copied, other than groups and functions."""
        return [
            f"{type(state).__name__}.{name}"
            for state, _ in self._states
            for name in sorted(_attributes(state) - _remembered(state).keys())
            if not _is_fixture(getattr(state, name, None))
        ]

    @torch.no_grad()
    def renew(self) -> None:
        """Keep the present states: they are not restored."""
        present = [_remembered(state) for state, _ in self._states]
        known = _stamp(present)
        if known == self._known:
            return  # no reduction since the last time
        old = dict(find_tensors(self._kept))
        copies: list[Tensor] = []
        sources: list[Tensor] = []

        def copied(tensor: Tensor, path: StatePath) -> Tensor:
            copy = old.get(path)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                return tensor.detach().clone()
            copies.append(copy)
            sources.append(tensor)
            return copy

        self._kept = map_with_paths(present, copied)
        if copies:
            torch._foreach_copy_(copies, sources)
        self._known = known

    @torch.no_grad()
    def restore(self) -> None:
        """Restore what was saved before the step."""
        self.load_state_dict({"states": self._kept})
        self._known = _stamp([_remembered(state) for state, _ in self._states])

    @torch.no_grad()
    def settle_on_device(self, bad: Tensor) -> None:
        """Restore where `bad` is true, without reading it on the host; counters stay."""
        old = dict(find_tensors(self._kept))
        for path, tensor in find_tensors([_remembered(state) for state, _ in self._states]):
            copy = old.get(path)
            if copy is not None and copy.shape == tensor.shape and copy.dtype == tensor.dtype:
                tensor.copy_(torch.where(bad.to(tensor.device), copy, tensor))
        self.renew()

    def state_dict(self) -> dict[str, Any]:
        """What the hooks remembered after the last good step, for snapshots: the first is taken
        when a backward pass has been made already."""
        return {"states": self._kept}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        kept = saved["states"]
        if len(kept) != len(self._states):
            raise UsageError(
                f"the snapshot and this guard have {len(kept)} and {len(self._states)} "
                "communication hooks with a state: register the same before the guard is created"
            )
        for (state, device), values in zip(self._states, kept, strict=True):
            for name, value in values.items():
                setattr(state, name, _put_back(getattr(state, name, None), value, device))


def _attributes(state: Any) -> set[str]:
    slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name for name in (*slots, *getattr(state, "__dict__", {})) if hasattr(state, name)}


def _remembered(state: Any) -> dict[str, Any]:
    """Plain data, tensors and random numbers of a hook's state, by attribute."""
    found: dict[str, Any] = {}
    for name in sorted(_attributes(state)):
        value = getattr(state, name)
        if _is_random_state(value):
            kind, keys, *rest = value.get_state(legacy=True)
            found[name] = {RANDOM: [str(kind), keys.tobytes(), *map(float, rest)]}
        elif _is_plain(value):
            found[name] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, (int, str)) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, Tensor))


def _is_random_state(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.random.RandomState


def _is_fixture(value: Any) -> bool:
    """Whether it is part of the set-up and not of the training."""
    kinds = (dist.ProcessGroup, torch.dtype, torch.device, type(None), weakref.ref)
    return isinstance(value, kinds) or callable(value)


def _stamp(states: Any) -> Any:
    """Differs after a change: the versions of the tensors, and everything else."""
    return map_with_paths(states, lambda tensor, path: (id(tensor), tensor_version(tensor)))


def _put_back(present: Any, kept: Any, device: torch.device) -> Any:
    """What the attribute shall be. Containers and tensors that are there keep their identity."""
    if isinstance(kept, Tensor):
        if isinstance(present, Tensor) and present.shape == kept.shape:
            return present.copy_(kept)
        return kept.detach().to(device, copy=True)
    if isinstance(kept, Mapping) and RANDOM in kept:
        numpy = sys.modules["numpy"]
        kind, keys, position, has_gauss, cached = kept[RANDOM]
        words = numpy.frombuffer(keys, dtype=numpy.uint32)
        present.set_state((kind, words, int(position), int(has_gauss), cached))
        return present
    if isinstance(kept, Mapping):
        old = present if isinstance(present, dict) else {}
        new = {key: _put_back(old.get(key), value, device) for key, value in kept.items()}
        old.clear()
        old.update(new)
        return old
    if isinstance(kept, (list, tuple)):
        before = list(present) if isinstance(present, (list, tuple)) else []
        before += [None] * (len(kept) - len(before))
        new_items = [
            _put_back(old, value, device)
            for old, value in zip(before[: len(kept)], kept, strict=True)
        ]
        if isinstance(kept, list) and isinstance(present, list):
            present[:] = new_items
            return present
        return new_items if isinstance(kept, list) else tuple(new_items)
    return kept
