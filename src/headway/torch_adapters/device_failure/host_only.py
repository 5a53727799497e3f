"""Runs a script that was written for CUDA on the host, and finds the op that raises there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headway.torch_adapters.modes import TorchDispatchMode
from headway.torch_adapters.patching import install_patch

_STAYS = frozenset({"cuda", "pin_memory"})
"""Methods of a tensor that would move it."""
_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device=None: None,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "get_device_name": lambda device=None: "host",
    "get_device_capability": lambda device=None: (8, 0),
    "mem_get_info": lambda device=None: (1 << 34, 1 << 34),
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "is_bf16_supported": lambda *args: True,
    "memory_allocated": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 0,
    "reset_peak_memory_stats": lambda device=None: None,
}


class HostDevices(TorchFunctionMode):
    """Every device that a call names becomes the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _STAYS and args and isinstance(args[0], Tensor):
            return args[0]
        given = {name: _on_host(value) for name, value in (kwargs or {}).items()}
        given.pop("pin_memory", None)
        return func(*[_on_host(item) for item in args], **given)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def _without_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does nothing where there is no device."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, AssertionError):
            return None

    return call


@contextmanager
def cuda_on_host() -> Iterator[None]:
    """While this lasts, code for CUDA runs on the host; CUDA itself must be hidden."""
    with ExitStack() as stack:
        for name, function in list(vars(torch.cuda).items()):
            if isinstance(function, FunctionType) and not name.startswith("_"):
                answer = _ANSWERS.get(name) or _without_device(function)
                stack.callback(install_patch(torch.cuda, name, answer))
        stack.enter_context(HostDevices())
        yield


@dataclass(frozen=True, slots=True)
class BadIndex:
    """The first value of an op's input that is out of range."""

    op: str
    value: float | None = None
    position: tuple[int, ...] = ()
    limit: int | None = None
    """Number of valid values."""
    count: int = 0
    """How many values are out of range."""


class FailingOp(TorchDispatchMode):
    """Remembers the op that raised last, with its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:  # whatever the op raises is the answer; its arguments explain it
            self._call = (func, args, kwargs or {})
            raise

    def find(self) -> BadIndex | None:
        """What is wrong with the arguments of the op that raised; None: no op did."""
        if self._call is None:
            return None
        func, args, _ = self._call
        name = str(func).removeprefix("aten.").split(".")[0]
        for values, limit, ignored in _indices(name, args):
            bad = (values < (-limit if name in _NEGATIVE else 0)) | (values >= limit)
            if ignored is not None:
                bad &= values != ignored
            if bool(bad.any()):
                first = bad.nonzero()[0].tolist()
                return BadIndex(
                    name,
                    float(values[tuple(first)]),
                    tuple(first),
                    limit,
                    int(bad.sum()),
                )
        return self._out_of_unit_interval(name, args) or BadIndex(name)

    def _out_of_unit_interval(self, name: str, args: Sequence[Any]) -> BadIndex | None:
        if name not in ("binary_cross_entropy", "multinomial", "bernoulli") or not args:
            return None
        values = args[0]
        bad = ~((values >= 0) & (values <= (1 if name != "multinomial" else float("inf"))))
        if not bool(bad.any()):
            return None
        first = bad.nonzero()[0].tolist()
        value = float(values[tuple(first)])
        return BadIndex(name, value, tuple(first), None, int(bad.sum()))


_NEGATIVE = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
"""Ops whose indices may count from the end."""
_ALONG_DIMENSION = frozenset(
    {
        *("gather", "scatter", "scatter_add", "scatter_reduce"),
        *("index_select", "index_add", "index_copy"),
    }
)
"""Ops with the arguments (tensor, dimension, indices)."""


def _indices(name: str, args: Sequence[Any]) -> Iterator[tuple[Tensor, int, int | None]]:
    """(indices, number of valid values, value that is ignored) of an op."""
    if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
        yield args[1], args[0].shape[0], None
    elif name.startswith("nll_loss"):
        scores, target = args[0], args[1]
        classes = scores.shape[1] if scores.ndim > 1 else scores.shape[0]
        yield target, classes, args[4] if len(args) > 4 else None
    elif name in _NEGATIVE:
        for dimension, index in enumerate(args[1]):
            if isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32):
                yield index, args[0].shape[dimension], None
    elif name.rstrip("_") in _ALONG_DIMENSION:
        yield args[2], args[0].shape[args[1]], None
