"""What a user's communication hook remembers from step to step, such as PowerSGD's error feedback.

A bad gradient spoils it before the step is judged, and every later gradient after that. It is
copied after a good step and put back when an update is skipped, as buffers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.torch_adapters.compat import tensor_version
from headway.torch_adapters.nested_state import StatePath, find_tensors, map_with_paths
from headway.torch_adapters.process_groups.local_gradients import find_hook_states


class HookStates:
    """The states of the communication hooks of some models."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._states = find_hook_states(models)
        self._kept: list[dict[str, Any]] = []
        self._versions: list[int] = []
        self.renew()

    def __len__(self) -> int:
        return len(self._states)

    @torch.no_grad()
    def renew(self) -> None:
        """Keep the present states: they are not restored."""
        present = [_remembered(state) for state, _ in self._states]
        versions = [tensor_version(tensor) for _, tensor in find_tensors(present)]
        if versions == self._versions and len(self._kept) == len(present):
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
        self._versions = versions

    @torch.no_grad()
    def restore(self) -> None:
        """Put back what was remembered before the step."""
        self.load_state_dict({"states": self._kept})
        present = [_remembered(state) for state, _ in self._states]
        self._versions = [tensor_version(tensor) for _, tensor in find_tensors(present)]

    @torch.no_grad()
    def settle_on_device(self, bad: Tensor) -> None:
        """Put back where `bad` is true, without asking the host; counters stay."""
        old = dict(find_tensors(self._kept))
        for path, tensor in find_tensors([_remembered(state) for state, _ in self._states]):
            copy = old.get(path)
            if copy is not None and copy.shape == tensor.shape and copy.dtype == tensor.dtype:
                tensor.copy_(torch.where(bad.to(tensor.device), copy, tensor))
        self.renew()

    def state_dict(self) -> dict[str, Any]:
        """What the hooks remember, for snapshots."""
        return {"states": [_remembered(state) for state, _ in self._states]}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        for (state, device), kept in zip(self._states, saved["states"], strict=True):
            _put_back(state, kept, device)


def _attributes(state: Any) -> list[str]:
    slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*slots, *getattr(state, "__dict__", {})})


def _remembered(state: Any) -> dict[str, Any]:
    """Numbers and tensors of a hook's state, in attributes or in dicts, by attribute."""
    found: dict[str, Any] = {}
    for name in _attributes(state):
        value = getattr(state, name, None)
        if isinstance(value, (bool, int, float, Tensor)):
            found[name] = value
        elif isinstance(value, dict) and all(isinstance(item, Tensor) for item in value.values()):
            found[name] = dict(value)
    return found


def _put_back(state: Any, kept: Mapping[str, Any], device: torch.device) -> None:
    for name, value in kept.items():
        present = getattr(state, name, None)
        if isinstance(value, Mapping) and isinstance(present, dict):
            for key in present.keys() - value.keys():
                del present[key]
            for key, tensor in value.items():
                present[key] = _filled(present.get(key), tensor, device)
        elif isinstance(value, Tensor):
            setattr(state, name, _filled(present, value, device))
        elif not isinstance(value, Mapping):
            setattr(state, name, value)


def _filled(present: Any, kept: Tensor, device: torch.device) -> Tensor:
    if isinstance(present, Tensor) and present.shape == kept.shape:
        return present.copy_(kept)
    return kept.detach().to(device, copy=True)
