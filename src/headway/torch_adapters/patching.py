"""Patches torch to observe backward, gradient clipping and GradScaler, and restores it."""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad

from headway.torch_adapters.private_parts import private_part
from headway.torch_adapters.process_groups.sharded_tensors import is_dtensor, local_part, replicated
from headway.torch_adapters.runtime_state import is_capturing

# The one way in which anything of torch is replaced, and restored.

_NOT_ITS_OWN: Any = object()


def install_patch(owner: Any, name: str, replacement: Any) -> Callable[[], None]:
    """Replace an attribute of a module, class or object; what is returned restores it.

    An inherited attribute is inherited again afterwards. If another library has patched over this
    replacement, its patch stays: ours then passes calls on, unobserved. Patches of ours that lie on
    each other may be uninstalled in any order.
    """
    before = vars(owner).get(name, _NOT_ITS_OWN)  # as it is stored, not bound: a classmethod is one
    setattr(owner, name, replacement)
    installed = True

    def uninstall() -> None:
        nonlocal installed
        if not installed:
            return
        installed = False
        if vars(owner).get(name, _NOT_ITS_OWN) is not replacement:
            _covered[id(owner), name, id(replacement)] = (replacement, before)
            return
        below = before
        # Those that were uninstalled while this one lay on them.
        while (key := (id(owner), name, id(below))) in _covered:
            _, below = _covered.pop(key)
        if below is _NOT_ITS_OWN:
            delattr(owner, name)
        else:
            setattr(owner, name, below)

    return uninstall


_covered: dict[tuple[int, str, int], tuple[Any, Any]] = {}
"""Uninstalled replacements under another patch, and the original of each."""


def wrap_function(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace `owner.name` by `wrap(owner.name)`; what is returned restores it.

    Where this torch has no such attribute, nothing is replaced and nothing observed.
    """
    original = getattr(owner, name, None)
    return _do_nothing if original is None else install_patch(owner, name, wrap(original))


def _do_nothing() -> None:
    pass


def override_methods(item: Any, **methods: Any) -> Callable[[], None]:
    """Override methods of one object, special ones too; what is returned restores it.

    The object gets a subclass of its class, so that it stays the same object and an instance of
    what it was. It is held weakly.
    """
    kind = type(item)
    replacement = type(kind.__name__, (kind,), methods)
    item.__class__ = replacement
    reference = weakref.ref(item)

    def uninstall() -> None:
        present = reference()
        if present is not None and type(present) is replacement:
            present.__class__ = kind

    return uninstall


@contextmanager
def call_after(owner: type, name: str, notify: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """While this lasts, call `notify(object, args, result)` after every call of a method."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            notify(self, args or tuple(kwargs.values()), result)
            return result

        return method

    uninstall = wrap_function(owner, name, wrap)
    try:
        yield
    finally:
        uninstall()


# Observing torch itself: backward, gradient clipping, GradScaler.

# An optimizer's hooks do not show what the loss was, nor what the gradients were before the user
# clipped them (clipping spreads one NaN over all of them), nor that a GradScaler skipped the step.
# While at least one guard is open, five functions of torch call the observers. Every call goes
# through unchanged, and the last guard to close restores the originals.


for _name in ("_get_total_norm", "_clip_grads_with_norm_"):
    private_part(
        f"torch.nn.utils.clip_grad.{_name}",
        None,
        without="clipping by the user is not observed: gradient norms are those after it",
    )


class TorchListener(Protocol):
    """The events that a guard is notified of. A subclass defines those that it needs."""

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """A backward pass is about to run from these scalars."""
        return

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        """The backward pass has filled the gradients."""

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, total: Tensor
    ) -> None:
        """The user is about to clip these gradients."""
        return

    def clipped(self, total: Tensor, max_norm: float) -> None:
        """The user has clipped."""
        return

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        """A scaler multiplied a loss."""
        return

    def scaler_steps(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """A scaler is about to step an optimizer, or to skip it."""
        return

    def scaler_stepped(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped or skipped it."""
        return


_listeners: tuple[weakref.ref[TorchListener], ...] = ()
"""Weak, and replaced as a whole: a guard that was never closed dies with its optimizer."""
_uninstall: list[Callable[[], None]] = []
_lock = threading.RLock()
"""Re-entrant: a garbage collection within it may find a guard that was never closed."""
_depth = 0
"""Backward passes running now: re-entrant checkpointing starts one inside another."""


def add_listener(observer: TorchListener) -> None:
    """Notify an observer of what torch does, for as long as the observer lives."""
    global _listeners
    with _lock:
        if not _uninstall:
            # Without one of the private two, clipping is not observed.
            for owner, name, wrap in (
                (torch.autograd, "backward", _watch_backward),
                (clip_grad, "_get_total_norm", _watch_total_norm),
                (clip_grad, "_clip_grads_with_norm_", _watch_clipping),
                (GradScaler, "scale", _watch_scale),
                (GradScaler, "step", _watch_scaler_step),
            ):
                _uninstall.append(wrap_function(owner, name, wrap))
        _listeners = (*_listeners, weakref.ref(observer, _remove))


def remove_listener(observer: TorchListener) -> None:
    """Notify it no longer. The last one to go restores torch."""
    for ref in _listeners:
        if ref() is observer:
            _remove(ref)


def _listening() -> list[TorchListener]:
    if is_capturing():  # a graph would repeat our work at every replay, with nobody to read it
        return []
    return [observer for ref in _listeners if (observer := ref()) is not None]


def _remove(gone: weakref.ref[TorchListener]) -> None:
    global _listeners
    with _lock:
        _listeners = tuple(ref for ref in _listeners if ref is not gone)
        if not _listeners:
            while _uninstall:
                _uninstall.pop()()


def _watch_backward(original: Any) -> Any:
    @functools.wraps(original)  # `inspect.unwrap` finds torch's own
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        global _depth
        if _depth:  # one inside another
            return original(tensors, grad_tensors, *args, **kwargs)
        roots = _scalars(tensors) if grad_tensors is None else ()
        known, observers = _listeners, _listening()
        for observer in observers:
            observer.backward_begins(roots)
        _depth += 1
        try:
            result = original(tensors, grad_tensors, *args, **kwargs)
        except BaseException as error:
            observers = []  # a traceback that is kept must not keep them
            if isinstance(error, RuntimeError):
                _restore_message(error)
            raise
        finally:
            _depth -= 1
        for observer in observers if known is _listeners else _listening():
            observer.backward_ended(roots)
        return result

    return backward


_CALLBACK = re.compile(
    r"^Got the following error when running the callback: (?:RuntimeError|RankLost): (.*?)\s*\n"
    r"\s*At:\n[^\n]*headway[^\n]*local_gradients\.py",
    re.DOTALL,
)


def _restore_message(error: RuntimeError) -> None:
    """Take our communication hook out of the message of an error.

    A reduction fails when another rank is lost; torch then names the callback that was waiting for
    it, which is ours and innocent.
    """
    match = _CALLBACK.match(str(error))
    if match is not None:
        error.args = (match[1],)


def _scalars(tensors: Any) -> Sequence[Tensor]:
    if isinstance(tensors, Tensor):
        return (tensors,) if tensors.numel() == 1 else ()
    given = tuple(tensors)
    return tuple(item for item in given if isinstance(item, Tensor) and item.numel() == 1)


_last_norms: tuple[Sequence[Tensor], Tensor] | None = None
"""The per-tensor norms behind the total that torch computed last, so that they are not
computed twice."""


def _watch_total_norm(original: Any) -> Any:
    def get_total_norm(
        tensors: Any,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        global _last_norms
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if (
            not _listeners
            or error_if_nonfinite
            or foreach is not None
            or not _plain(given, norm_type)
        ):
            return original(given, norm_type, error_if_nonfinite, foreach)
        with torch.no_grad():
            # The very operations of the original for tensors of one device and dtype.
            norms = torch._foreach_norm(given, float(norm_type))
            total = torch.linalg.vector_norm(torch.stack(norms), float(norm_type))
        _last_norms = (norms, total)
        return total

    return get_total_norm


def _plain(tensors: list[Any], norm_type: float) -> bool:
    """Whether the norms can be shared: L2, plain tensors, one device, one full-precision dtype."""
    if not tensors or norm_type != 2.0 or any(type(item) is not Tensor for item in tensors):
        return False
    device, dtype = tensors[0].device, tensors[0].dtype
    return (
        device.type in ("cpu", "cuda")
        and dtype in (torch.float32, torch.float64)
        and tensors[0].layout is torch.strided
        and tensors[-1].layout is torch.strided
        and all(item.device == device and item.dtype is dtype for item in tensors)
    )


def _watch_clipping(original: Any) -> Any:
    def clip_grads_with_norm(
        parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
    ) -> Any:
        global _last_norms
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        shared = _last_norms[0] if _last_norms and _last_norms[1] is total_norm else None
        _last_norms = None
        if is_dtensor(total_norm):
            # Put together here, where torch would do it next: nothing is exchanged twice.
            total_norm = replicated(total_norm)
        seen = local_part(total_norm)
        for observer in _listening():
            observer.clipping(given, shared, seen)
        result = original(given, max_norm, total_norm, foreach)
        for observer in _listening():
            observer.clipped(seen, float(max_norm))
        return result

    return clip_grads_with_norm


def _watch_scale(original: Any) -> Any:
    def scale(self: GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        if isinstance(outputs, Tensor) and result is not outputs:
            for observer in _listening():
                observer.scaled(self, outputs, result)
        return result

    return scale


def _watch_scaler_step(original: Any) -> Any:
    def step(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        for observer in _listening():
            observer.scaler_steps(self, optimizer)
        result = original(self, optimizer, *args, **kwargs)
        for observer in _listening():
            observer.scaler_stepped(self, optimizer)
        return result

    return step


# Waiting for the device is allowed only after something has gone wrong.


@contextmanager
def allow_device_sync() -> Iterator[None]:
    """Suspend the user's ban on device synchronisation (`torch.cuda.set_sync_debug_mode`)."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
    if not mode:
        yield
        return
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
