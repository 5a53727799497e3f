"""Norms of the gradients that this rank computed, read before the reduction averages them with the
other ranks'.

A NaN that one rank's backward makes is on every rank as soon as gradients are averaged. Under
DistributedDataParallel a communication hook sees each bucket just before; it then does what torch
does by itself, down to the rounding. Under FSDP2 the reduce-scatter of each group of parameters is
watched in the same way, or what comes just before it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.errors import RankLost
from headway.output.notices import Notices
from headway.torch_adapters.patching import override_methods
from headway.torch_adapters.process_groups.rank_agreement import first_sentence
from headway.torch_adapters.process_groups.rank_group import find_replicas
from headway.torch_adapters.process_groups.sharded_tensors import parameter_groups
from headway.torch_adapters.runtime_state import is_compiled

Shielded = Callable[..., Any]
LOST_IN_BACKWARD = "another rank died, hangs or left the loop while gradients were averaged"
"""Begins the error of a rank whose reduction failed; torch raises it as a RuntimeError."""


class LocalGradients:
    """The gradients of this rank's backward passes for one distributed module."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = frozenset(map(id, parameters))
        self.ready_at = 0.0
        """When the last gradient was ready: from then on this rank waits for the others."""
        self.aside: list[Tensor] | None = None
        """Where pieces go that are none of the training's; None: they are."""
        self._pieces: list[Tensor] = []
        self._passes: list[Tensor] = []

    def piece(self, gradients: Tensor) -> None:
        """Some local gradients are about to be reduced."""
        values = gradients.coalesce().values() if gradients.is_sparse else gradients
        # torch refuses to narrow float64 in the reduction itself.
        wide = None if values.dtype is torch.float64 else torch.float32
        norm = torch.linalg.vector_norm(values.detach(), dtype=wide).float()
        if self.aside is not None:
            self.aside.append(norm)
            return
        self._pieces.append(norm)
        self.ready_at = time.perf_counter()

    def backward_ended(self) -> None:
        """A backward pass is over; its pieces are one gradient."""
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._passes.append(torch.linalg.vector_norm(torch.stack(pieces)))

    def passes(self) -> list[Tensor]:
        """The norm of each backward pass since `forget`."""
        return self._passes

    def forget(self) -> None:
        """The gradients were cleared."""
        self._pieces, self._passes = [], []


class LocalGradientMonitor:
    """The local gradients that are watched for one guard."""

    def __init__(self, models: Sequence[nn.Module], shield: Shielded, notices: Notices) -> None:
        self._models = models
        self._shield = shield
        self._notices = notices
        self._origins: list[LocalGradients] = []
        self._undo: list[Callable[[], None]] = []
        self.replicas: list[nn.parallel.DistributedDataParallel] = []
        """The DistributedDataParallel among them, as of the first backward."""
        self._built_in: list[nn.parallel.DistributedDataParallel] = []
        """Those of them with a communication hook in C++."""
        self.installed = False

    def install(self) -> None:
        """Begin to watch. Late, at the first backward: by then the user has set his own hooks."""
        if self.installed:
            return
        self.installed = True
        self.replicas = find_replicas(self._models)
        for replica in self.replicas:
            self._watch_replica(replica)
        for model in self._models:
            self._watch_sharded(model)

    def of(self, parameters: Sequence[Tensor]) -> list[LocalGradients]:
        """Those that hold one of these parameters."""
        wanted = frozenset(map(id, parameters))
        return [origin for origin in self._origins if origin.parameters & wanted]

    def backward_ended(self) -> None:
        for origin in self._origins:
            origin.backward_ended()

    @property
    def uneven(self) -> bool:
        """Whether ranks may take different numbers of steps just now (`with model.join():`)."""
        return any(map(_takes_uneven_steps, self.replicas))

    @property
    def compressed(self) -> bool:
        """Whether gradients that are reduced may not be the average of what ranks made."""
        return any(
            getattr(replica, "mixed_precision", None) is not None
            or any(hook is not _hook for hook, _ in _comm_hooks(replica))
            or replica in self._built_in
            for replica in self.replicas
        )

    @property
    def compiled(self) -> bool:
        """Whether any part of the models goes through torch.compile."""
        return any(map(is_compiled, self._models))

    def pause_observing(self) -> None:
        """What backward makes from now on is none of the training's."""
        for origin in self._origins:
            origin.aside = []

    def resume_observing(self) -> None:
        """It is again."""
        for origin in self._origins:
            origin.aside = None

    def paused_norm(self) -> float | None:
        """The norm of what was made meanwhile; None where nothing was reduced."""
        pieces = [piece for origin in self._origins for piece in origin.aside or ()]
        return float(torch.linalg.vector_norm(torch.stack(pieces))) if pieces else None

    def close(self) -> None:
        """Watch no longer. A communication hook stays, and does what torch would do."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _watch_replica(self, replica: nn.parallel.DistributedDataParallel) -> None:
        hook = _hooks.get(replica)
        if hook is None:
            hook = ObservedReduction(replica)
            if not hook.register():
                self._built_in += [replica] if hook.built_in else []
                self._notices.once(
                    "comm-hook",
                    "the model has its own communication hook, or reduces gradients in a way that "
                    "allows none: a gradient that becomes non-finite in backward cannot be traced "
                    "to its rank; a non-finite loss can",
                    shared=True,
                )
                return
            _hooks[replica] = hook
        origin = LocalGradients(list(replica.parameters()))
        self._origins.append(origin)
        hook.observer = partial(self._shield, origin.piece)
        self._undo.append(hook.mute)

    def _watch_sharded(self, model: nn.Module) -> None:
        groups = parameter_groups(model)
        if not groups:
            return
        origin = LocalGradients(
            [item.sharded_param for group in groups for item in group.fsdp_params]
        )
        for group in groups:
            comm = getattr(group, "_reduce_scatter_comm", None)
            if _is_observed(group if comm is None else comm):
                continue
            if comm is not None:
                self._undo.append(_observe(comm, partial(self._shield, origin.piece)))
            else:
                observer = partial(self._shield, _report_pieces, origin.piece)
                self._undo.append(_observe_group(group, observer))
        if self._undo:
            self._origins.append(origin)


def _takes_uneven_steps(replica: nn.parallel.DistributedDataParallel) -> bool:
    """Whether `join` is active; False if torch does not expose it."""
    return bool(getattr(getattr(replica, "_join_config", None), "enable", False))


def _comm_hooks(replica: nn.parallel.DistributedDataParallel) -> list[Any]:
    """Python communication hooks of a replica. Where torch does not list them, registering ours
    fails beside another, and gradients then count as compressed."""
    found: list[Any] = getattr(replica, "_comm_hooks", [])
    return found


def find_hook_states(models: Sequence[nn.Module]) -> list[tuple[Any, torch.device]]:
    """The states of the user's communication hooks, with the device of their gradients."""
    return [
        (state, next(replica.parameters()).device)
        for replica in find_replicas(models)
        for hook, state in _comm_hooks(replica)
        if hook is not _hook and state is not None
    ]


class ObservedReduction:
    """A communication hook that reports a bucket and then averages it as torch itself does."""

    def __init__(self, replica: nn.parallel.DistributedDataParallel) -> None:
        self.observer: Callable[[Tensor], Any] | None = None
        self.built_in = False
        """Whether there turned out to be one of torch's own."""
        self._group = replica.process_group
        self._size = dist.get_world_size(self._group)
        self._replica = weakref.ref(replica)

    def register(self) -> bool:
        """False where the module has a hook, or none would be right."""
        replica = self._replica()
        assert replica is not None
        if _comm_hooks(replica) or getattr(replica, "_use_python_reducer", False):
            return False
        if getattr(replica, "mixed_precision", None) is not None or _has_sparse(replica):
            return False
        if replica.gradient_as_bucket_view and self._size & (self._size - 1):
            # torch multiplies by 1/n while it copies a gradient into its bucket, but divides by n
            # one that is there already; the last bit differs unless n is 2, 4, 8, …
            return False
        try:
            replica.register_comm_hook(self, _hook)
        except RuntimeError:  # a built-in one is there
            if _comm_hooks(replica):
                _comm_hooks(replica).pop()
            self.built_in = True
            return False
        return True

    def mute(self) -> None:
        """Report nothing from now on."""
        self.observer = None

    def __call__(self, bucket: Any) -> Any:
        gradients = bucket.buffer()
        if self.observer is not None:
            self.observer(gradients)
        gradients.mul_(1.0 / self._size)
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        return work.get_future().then(_reduced)


def _reduced(done: Any) -> Tensor:
    """The averaged bucket. Torch adds this file and line to an error that is raised here."""
    try:
        reduced: Tensor = done.value()[0]
    except RuntimeError as error:
        raise RankLost(
            f"{LOST_IN_BACKWARD}: {first_sentence(error)}. Check the last output of the other "
            "ranks; this rank only noticed it here"
        ) from None
    return reduced


_hooks: weakref.WeakKeyDictionary[nn.Module, ObservedReduction] = weakref.WeakKeyDictionary()
"""Torch lets a hook be set once, so the next guard of the same model takes over this one's."""


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and not ours
    return state(bucket)


def _has_sparse(module: nn.Module) -> bool:
    return any(getattr(unit, "sparse", False) is True for unit in module.modules())


def _is_observed(item: Any) -> bool:
    return getattr(type(item), "observed_by_headway", False)


def _observe(comm: Any, observer: Callable[[Tensor], Any]) -> Callable[[], None]:
    """Report what a reduce-scatter of FSDP2 is given; returns what undoes it."""
    kind = type(comm)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer(kwargs["input_tensor"] if "input_tensor" in kwargs else args[1])
        return kind.__call__(self, *args, **kwargs)

    return override_methods(comm, __call__=call, observed_by_headway=True)


def _observe_group(group: Any, observer: Callable[[Any], Any]) -> Callable[[], None]:
    """The same for a torch whose reduce-scatter is not an object, as in 2.7."""
    kind = type(group)

    def post_backward(self: Any, *unused: Any) -> Any:
        if self.reduce_grads:
            observer(self)
        return kind.post_backward(self, *unused)

    return override_methods(group, post_backward=post_backward, observed_by_headway=True)


def _report_pieces(piece: Callable[[Tensor], Any], group: Any) -> None:
    """The gradients of a group that FSDP2 is about to reduce."""
    for unit in group.fsdp_params:
        unit.accumulate_unsharded_grad_if_needed()  # torch is about to; a second time does nothing
        if unit.unsharded_accumulated_grad is not None:
            piece(unit.unsharded_accumulated_grad_data)
        elif getattr(getattr(unit, "_unsharded_param", None), "grad", None) is not None:
            piece(unit.unsharded_grad_data)
