"""Captures and restores the state of a training.

Models, buffers, optimizers, scheduler, scaler, EMA, and everything else that the user named. The
state consists of tensors and plain data, so that it loads with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.errors import UsageError
from headway.torch_adapters.compat import module_buffers, non_persistent_buffers, preserve_version
from headway.torch_adapters.nested_state import StatePath, find_tensors, make_loadable, map_tensors
from headway.torch_adapters.optimizer_adapter import local_optimizer
from headway.torch_adapters.process_groups import sharded_tensors
from headway.torch_adapters.process_groups.rank_group import find_replicas
from headway.torch_adapters.process_groups.sharded_tensors import is_dtensor, local_part
from headway.torch_adapters.saved_state import MAX_BUFFER_BYTES

HOOKS = "communication_hooks"
"""The state of communication hooks, such as PowerSGD's error feedback. It is laid out by the
buckets of DistributedDataParallel, which a resume restores first."""
SCHEDULE = "scheduler"
"""The part that a roll back leaves alone: it belongs to the data, which continue."""


class Stateful(Protocol):
    """Anything with a state dict: a scheduler, a scaler, an EMA, a loader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class TrainingState:
    """The objects whose state makes up the training."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        others: Mapping[str, Stateful],
    ) -> None:
        """`others` by name: `scheduler`, `scaler`, `ema`, …; may gain members later."""
        self._models = models
        self._optimizers = optimizers
        self.others = others
        self._weights = [
            {name for name, _ in model.named_parameters(remove_duplicate=False)}
            for model in self._models
        ]
        self._replicated: set[StatePath] = set()

    @property
    def models(self) -> Sequence[nn.Module]:
        """The models, in the order in which the guard was given them."""
        return self._models

    @property
    def sharded(self) -> bool:
        """Whether any part of the state is on other ranks only."""
        return any(is_dtensor(p) for model in self._models for p in model.parameters())

    def weights(self) -> Iterator[Tensor]:
        """The parameters of the models."""
        return (parameter for model in self._models for parameter in model.parameters())

    def parameters(self) -> list[list[Tensor]]:
        """The parameters of each optimizer, in the order of its state dict."""
        return [
            [p for group in local_optimizer(optimizer).param_groups for p in group["params"]]
            for optimizer in self._optimizers
        ]

    def find_replicated(self, ranks: int) -> None:
        """Learn which parameters DistributedDataParallel keeps the same on this many ranks."""
        known = {
            id(parameter)
            for replica in find_replicas(self._models)
            if replica.process_group.size() == ranks
            for name, parameter in replica.module.named_parameters(remove_duplicate=False)
            if name not in replica.parameters_to_ignore
        }
        self._replicated = {
            ("models", at, "state", name)
            for at, model in enumerate(self._models)
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if id(parameter) in known
        }
        for at, (item, parameters) in enumerate(
            zip(self._optimizers, self.parameters(), strict=True)
        ):
            if local_optimizer(item) is item:
                self._replicated |= {
                    ("optimizers", at, "state", position)
                    for position, parameter in enumerate(parameters)
                    if id(parameter) in known
                }

    def is_replicated(self, path: StatePath) -> bool:
        """Whether a weight, or a moment of one, is known to be the same on all ranks."""
        return path[:4] in self._replicated

    def is_learned(self, path: StatePath) -> bool:
        """Whether it is a weight or a moment."""
        if path[0] == "models":
            return bool(path[-1] in self._weights[path[1]])
        return bool(path[0] == "optimizers")

    def fixed_size(self) -> str:
        """Why another number of ranks cannot take this state over; empty: it may."""
        if any(sharded_tensors.is_flat(model) for model in self._models):
            return "FullyShardedDataParallel divides flat parameters by the number of ranks"
        if any(local_optimizer(item) is not item for item in self._optimizers):
            return "ZeroRedundancyOptimizer divides the moments by the number of ranks"
        return ""

    def capture(self) -> dict[str, Any]:
        """The present state by reference; copy the tensors before the training continues."""
        return {
            "models": [_model_state(model) for model in self._models],
            "optimizers": [make_loadable(_optimizer_state(item)) for item in self._optimizers],
            "others": {
                name: make_loadable(item.state_dict()) for name, item in self.others.items()
            },
        }

    def expected_nonfinite(self, state: Mapping[str, Any]) -> set[StatePath]:
        """Paths where a non-finite value is intended: buffers (masks) that start with one.

        In weights and moments it never is.
        """
        found = set()
        for path, tensor in find_tensors({"models": state["models"], "others": state["others"]}):
            is_weight = path[0] == "models" and path[-1] in self._weights[path[1]]
            if is_weight or not tensor.is_floating_point():
                continue
            if not bool(torch.isfinite(local_part(tensor)).all()):
                found.add(path)
        return found

    def digest(self, paths: Iterable[StatePath]) -> str:
        """A checksum of some tensors of the present state."""
        wanted = set(paths)
        tensors = [tensor for path, tensor in find_tensors(self.capture()) if path in wanted]
        return hashlib.sha256("".join(map(digest_tensor, tensors)).encode()).hexdigest()[:16]

    def require_match(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if a state belongs to another training."""
        for kind, mine in (("models", self._models), ("optimizers", self._optimizers)):
            if len(state[kind]) != len(mine):
                raise UsageError(
                    f"the snapshot contains {len(state[kind])} {kind}, this guard has {len(mine)}: "
                    "create the guard as in the run that wrote the snapshot"
                )
        for model, saved in zip(self._models, state["models"], strict=True):
            _require_same_model(_model_state(model), saved)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            here = [len(group["params"]) for group in local_optimizer(optimizer).param_groups]
            there = [len(group["params"]) for group in saved["param_groups"]]
            if here != there:
                raise UsageError(
                    f"the snapshot's {type(optimizer).__name__} has groups of {there} parameters, "
                    f"this one {here}: create the guard as in the run that wrote the snapshot"
                )

    @torch.no_grad()
    def restore_buffers(self, state: Mapping[str, Any]) -> None:
        """Restore the buffers of the models, and nothing that was learned."""
        for model, weights, saved in zip(self._models, self._weights, state["models"], strict=True):
            buffers = {name: v for name, v in saved["state"].items() if name not in weights}
            _restore_model(model, {**saved, "state": buffers})

    @contextmanager
    def other_weights(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Context manager: use the weights and buffers of another state."""
        tensors = [
            local_part(tensor).detach()
            for model in self._models
            for tensor in (*model.parameters(), *model.buffers())
        ]
        kept = [tensor.clone() for tensor in tensors]
        # Without a new version: a graph that is still needed stays valid.
        with preserve_version(tensors):
            try:
                with torch.no_grad():
                    for model, saved in zip(self._models, state["models"], strict=True):
                        _restore_model(model, saved)
                yield
            finally:
                with torch.no_grad():
                    for tensor, value in zip(tensors, kept, strict=True):
                        tensor.copy_(value)

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any], *, schedule: bool) -> None:
        """Restore a state into the same objects; `schedule`: learning rates and scheduler too."""
        self.require_match(state)
        for model, saved in zip(self._models, state["models"], strict=True):
            _restore_model(model, saved)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            _restore_optimizer(optimizer, saved, schedule=schedule)
        for name, item in self.others.items():
            if name in state["others"] and (schedule or name != SCHEDULE):
                item.load_state_dict(map_tensors(state["others"][name], Tensor.clone))

    @torch.no_grad()
    def restore_for_replay(self, state: Mapping[str, Any]) -> None:
        """Restore what a forward pass depends on from an incident: no moments, no schedules.

        Raises UsageError where it does not fit.
        """
        if len(state["models"]) != len(self._models):
            raise UsageError(
                f"the incident contains {len(state['models'])} models, "
                f"this guard has {len(self._models)}"
            )
        for model, saved in zip(self._models, state["models"], strict=True):
            _require_same_model(_model_state(model), saved, "incident")
        for model, saved in zip(self._models, state["models"], strict=True):
            _restore_model(model, saved)
        kept = state.get("others", {})
        for name in (self.others.keys() & kept.keys()) - {SCHEDULE}:
            self.others[name].load_state_dict(map_tensors(kept[name], Tensor.clone))


def _model_state(model: nn.Module) -> dict[str, Any]:
    return {"state": make_loadable(_own_state(model)), "unlisted": dict(_unlisted(model))}


def _own_state(model: nn.Module) -> dict[str, Any]:
    """The state dict of what this rank holds."""
    if not sharded_tensors.is_flat(model):
        return model.state_dict()
    # The state dict of FullyShardedDataParallel consists of gathered copies: filling them changes
    # nothing, and gathering takes all ranks.
    unlisted = {name for name, _ in _unlisted(model)}
    buffers = model.named_buffers(remove_duplicate=False)
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **{name: buffer for name, buffer in buffers if name not in unlisted},
    }


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """The state dict of what this rank holds."""
    inner = local_optimizer(optimizer)
    state = inner.state_dict()
    if inner is not optimizer:  # the user, or a scheduler, changes the rates of the outer one
        for mine, outer in zip(state["param_groups"], optimizer.param_groups, strict=True):
            mine.update({name: value for name, value in outer.items() if name != "params"})
    return state


def digest_tensor(tensor: Tensor) -> str:
    """A checksum of the values of a tensor, or of this rank's part of it."""
    values = local_part(tensor.detach()).cpu()
    if values.layout is not torch.strided:
        values = values.to_dense()
    flat = values.contiguous().view(-1)
    data = flat.view(torch.uint8).numpy() if flat.numel() else b""
    about = f"{tuple(values.shape)} {values.dtype}".encode()
    return hashlib.sha256(about + hashlib.sha256(data).digest()).hexdigest()


def _unlisted(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that a state dict leaves out: they can contain NaN too."""
    for path, module in model.named_modules():
        for name in non_persistent_buffers(module):
            buffer = module_buffers(module).get(name)
            if buffer is not None and buffer.nbytes <= MAX_BUFFER_BYTES:
                yield f"{path}.{name}" if path else name, buffer


def _restore_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    present = _own_state(model)
    for name, value in saved["state"].items():
        if isinstance(value, Tensor) or sharded_tensors.is_local_shard(value):
            sharded_tensors.fill_local(present[name], value)
    if not all(isinstance(value, Tensor) for value in present.values()):
        # Extra state of modules: only they know how to load it.
        odd = {name: v for name, v in saved["state"].items() if name.endswith("_extra_state")}
        model.load_state_dict(odd, strict=False)
    for name, buffer in _unlisted(model):
        kept = saved["unlisted"].get(name)
        if kept is not None and kept.shape == buffer.shape:
            buffer.copy_(kept)


def _restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], *, schedule: bool) -> None:
    outer, optimizer = optimizer, local_optimizer(optimizer)
    # Copies: an optimizer keeps the tensors that it loads.
    moments = sharded_tensors.revive_optimizer_state(saved["state"], optimizer)
    groups = saved if schedule else _optimizer_state(outer)
    rates = map_tensors(groups["param_groups"], Tensor.clone)
    optimizer.load_state_dict({"state": moments, "param_groups": rates})
    if outer is not optimizer:
        for group, mine in zip(outer.param_groups, optimizer.param_groups, strict=True):
            group.update({name: value for name, value in mine.items() if name != "params"})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for position, kept in moments.items():
        mine = optimizer.state[parameters[position]]
        for name, value in kept.items():
            loaded = mine.get(name)
            if not (isinstance(value, Tensor) and isinstance(loaded, Tensor)):
                continue
            # torch casts moments to the weight's dtype: float32 moments of bfloat16 weights.
            if loaded.dtype != value.dtype:
                mine[name] = value.to(loaded.device)


def _require_same_model(
    present: Mapping[str, Any], saved: Mapping[str, Any], what: str = "snapshot"
) -> None:
    mine, theirs = present["state"], saved["state"]
    if mine.keys() != theirs.keys():
        odd = sorted(mine.keys() ^ theirs.keys())
        raise UsageError(
            f"the {what} belongs to another model: {odd[0]}"
            + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
            + " exists in only one of the two"
        )
    for name, value in mine.items():
        shape = sharded_tensors.full_shape(theirs[name])
        if isinstance(value, Tensor) and tuple(value.shape) != shape:
            raise UsageError(
                f"the {what} belongs to another model: {name} is {shape} there "
                f"and {tuple(value.shape)} here"
            )
