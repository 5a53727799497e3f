"""As much of Triton as our kernels use, in plain torch on a CPU: each program runs by itself.

It says whether a kernel computes the right thing, not whether Triton compiles it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_PROGRAM: list[int] = [0, 0]


class Pointer:
    """Into the memory of a tensor, as kernels see it: flat."""

    def __init__(self, memory: Tensor, at: Any) -> None:
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, by: Any) -> Pointer:
        return Pointer(self.memory, self.at + by)


def _pointer(x: Tensor) -> Pointer:
    size = x.untyped_storage().nbytes() // x.element_size()
    return Pointer(x.as_strided((size,), (1,), 0), x.storage_offset())


def _load(pointer: Pointer, mask: Tensor | None = None, other: float = 0.0) -> Tensor:
    at = torch.as_tensor(pointer.at)
    if mask is None:
        return pointer.memory[at].clone()
    found = pointer.memory[torch.where(mask, at, 0)]
    return torch.where(mask, found, torch.full_like(found, other))


def _store(pointer: Pointer, value: Tensor, mask: Tensor | None = None) -> None:
    at = torch.as_tensor(pointer.at)
    if mask is None:
        pointer.memory[at] = value.to(pointer.memory.dtype)
    else:
        pointer.memory[at[mask]] = value[mask].to(pointer.memory.dtype)


def _max(x: Tensor, axis: int) -> Tensor:
    """Without NaN, as the hardware's is: what must not be hidden may not rely on it."""
    return torch.where(x.isnan(), -torch.inf, x).amax(axis)


class Kernel:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, enable_fp_fusion: bool, **sizes: Any) -> None:
            assert num_warps & (num_warps - 1) == 0
            assert not enable_fp_fusion
            assert sizes["BLOCK"] & (sizes["BLOCK"] - 1) == 0
            seen = [_pointer(x) if isinstance(x, Tensor) else x for x in args]
            for place in itertools.product(*map(range, grid)):
                _PROGRAM[: len(place)] = place
                self.function(*seen, **sizes)

        return launch


def stand_in() -> dict[str, ModuleType]:
    """For `sys.modules`, while the kernels are imported."""
    language = ModuleType("triton.language")
    vars(language).update(
        constexpr=object,
        float32=torch.float32,
        int64=torch.int64,
        program_id=lambda axis: torch.tensor(_PROGRAM[axis]),
        arange=torch.arange,
        load=_load,
        store=_store,
        where=lambda condition, *both: torch.where(torch.as_tensor(condition), *both),
        max=_max,
        sum=lambda x, axis: x.sum(axis),
        abs=abs,
        exp2=torch.exp2,
        log=torch.log,
        sqrt=torch.sqrt,
        sqrt_rn=torch.sqrt,
        rsqrt=torch.rsqrt,
        div_rn=torch.div,
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        zeros_like=torch.zeros_like,
    )
    triton = ModuleType("triton")
    vars(triton).update(jit=Kernel, language=language)
    return {"triton": triton, "triton.language": language}


def imported_kernels() -> ModuleType:
    """Our kernels over the stand-in; nothing of either stays behind."""
    import importlib

    name = "headway.numerics.nway.triton_kernels"
    before = {module: sys.modules.get(module) for module in (name, "triton", "triton.language")}
    sys.modules.update(stand_in())
    sys.modules.pop(name, None)
    try:
        return importlib.import_module(name)
    finally:
        for module, was in before.items():
            if was is None:
                sys.modules.pop(module, None)
            else:
                sys.modules[module] = was
