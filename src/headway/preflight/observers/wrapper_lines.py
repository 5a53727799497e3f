"""Lines of a script that bypass the DistributedDataParallel wrapper of a model."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from headway.engine import PLACES
from headway.preflight.observer import Observer
from headway.preflight.script_context import observe_method
from headway.torch_adapters.frames import describe_frame, is_installed_file
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.patching import call_after

# The lines that let replicas drift apart: a forward past the wrapper, `no_sync` around the last
# backward of a step, a cast or a loaded state after the wrapping. A finding about replicas that
# differ points at them.


class WrapperLines(Observer):
    """Notes the lines that treat a wrapped model as if it were not wrapped."""

    def start(self) -> None:
        self._wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._inner: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._said: set[str] = set()
        self._no_sync: Any = None
        self._unsynced = False
        if not dist.is_available():
            return
        undo = self.script.undo
        undo.enter_context(call_after(DistributedDataParallel, "__init__", self._wraps))
        observe_method(self.script, DistributedDataParallel, "no_sync", before=self._no_sync_begins)
        for name in ("half", "bfloat16", "float", "double", "to"):
            observe_method(self.script, nn.Module, name, before=self._cast)

    def _wraps(self, wrapper: DistributedDataParallel, args: Any, result: Any) -> None:
        self._wrapped.add(wrapper)
        self._inner.update(wrapper.module.modules())

    def _no_sync_begins(self, *_: Any) -> None:
        self._no_sync = self.script.place()

    def _cast(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if self._inner and (module in self._inner or module in self._wrapped):
            self._say("wrapped_cast", self.script.place())

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._inner or "bypass" in self._said or len(self.script.stack) != 1:
            return
        if module in self._inner and module.training and torch.is_grad_enabled():
            self._say("bypass", self._outside_line())

    def _outside_line(self) -> Any:
        """The user's line outside the model's own methods."""
        for frame in self.script.frames():
            if is_installed_file(frame.f_code.co_filename):
                continue
            owner = frame.f_locals.get("self")
            if not (isinstance(owner, nn.Module) and owner in self._inner):
                return describe_frame(frame).to_dict()
        return self.script.place()

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if self._inner and isinstance(owner, nn.Module) and owner in self._inner:
            self._say("wrapped_load", self.script.place())

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._unsynced = any(not item.require_backward_grad_sync for item in self._wrapped)

    def step_begins(self, optimizer: Optimizer) -> None:
        if self._unsynced and self._no_sync is not None:
            self._say("no_sync", self._no_sync)

    def _say(self, what: str, place: Any) -> None:
        if place is not None and what not in self._said:
            self._said.add(what)
            self.evidence.record(PLACES, {what: place})


AVERAGED = "rank-replicas"
SMALL = 16
"""Elements up to which an exchange is a number to log."""


class AveragedReplicas(Observer):
    """Observes that weights of a wrapped model are averaged between two steps: local SGD. The
    replicas may differ in between."""

    def start(self) -> None:
        self._trained = self._in_backward = self._averaged = False
        if dist.is_available():
            observe_method(self.script, dist, "all_reduce", before=self._reduced)

    @property
    def _wrapped(self) -> bool:
        guard = self.script.launch.guard
        return guard is not None and guard.session.ranks is not None

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._in_backward = True

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._in_backward = False
        if not self._trained and self._wrapped:
            self._trained = True
            self.evidence.record(AVERAGED, {"listens": True})

    def _reduced(self, *args: Any, **kwargs: Any) -> None:
        if self._averaged or self._in_backward or not self._trained:
            return
        models = self.script.models
        weights = [p.detach() for m in models for p in m.parameters() if p.numel() > SMALL]
        for _, tensor in find_tensors([args, kwargs]):
            given = tensor.detach()
            if any(w.shape == given.shape and torch.equal(w, given) for w in weights):
                self._averaged = True
                self.evidence.record(AVERAGED, {"listens": True, "averaged": True})
                return
