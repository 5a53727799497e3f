"""The kernels of the stable ops on a CPU: their own C++, in a plain loop, by the system's compiler.

It says whether a kernel computes the right thing, in every dtype; not what a GPU makes of it. As
torch's `jiterator` does, it broadcasts, promotes to one dtype and computes half types in float32.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops import _kernels as _fused

_WORKS: dict[Any, frozenset[int]] = {}
_TYPES = {torch.float32: "float", torch.float64: "double"}


def _inputs(kernel: _kernels.Kernel) -> int:
    parameters = kernel.code.split("(")[1].split(")")[0].split(",")
    given = len(parameters) - len(kernel.numbers)
    return given - kernel.outputs if kernel.outputs > 1 else given


def _loop(kernel: _kernels.Kernel, type_: str) -> str:
    name, inputs = kernel.name, _inputs(kernel)
    arguments = [f"x[{n}][i]" for n in range(inputs)]
    arguments += [f"numbers[{n}]" for n in range(len(kernel.numbers))]
    if kernel.outputs > 1:
        arguments += [f"out[{n}][i]" for n in range(kernel.outputs)]
        call = f"{name}<{type_}>({', '.join(arguments)});"
    else:
        call = f"out[0][i] = {name}<{type_}>({', '.join(arguments)});"
    return (
        f'extern "C" void {name}_{type_}(long n, {type_}** x, {type_}** out, double* numbers) '
        f"{{ for (long i = 0; i < n; ++i) {call} }}"
    )


@cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    kernels = [item for item in vars(_kernels).values() if isinstance(item, _kernels.Kernel)]
    lines = ["#include <math.h>", *(kernel.code for kernel in kernels)]
    lines += [_loop(kernel, type_) for kernel in kernels for type_ in _TYPES.values()]
    with TemporaryDirectory() as folder:
        source, built = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text("\n".join(lines))
        flags = ["-shared", "-fPIC", "-O0", "-ffp-contract=off", "-Wall", "-Werror"]
        subprocess.run([compiler, *flags, str(source), "-o", str(built)], check=True)
        return ctypes.CDLL(str(built))


def launch(kernel: _kernels.Kernel, tensors: tuple[Tensor, ...], numbers: dict[str, float]) -> Any:
    assert tuple(numbers) == kernel.numbers, "torch takes them in their order"
    assert all(isinstance(number, float) for number in numbers.values()), numbers
    assert len(tensors) == _inputs(kernel)
    seen = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    assert not seen, "a kernel is not seen by autograd"
    common = tensors[0].dtype
    for x in tensors:
        common = torch.promote_types(common, x.dtype)
    inside = torch.promote_types(common, torch.float32)
    wide = [x.to(inside).contiguous() for x in torch.broadcast_tensors(*tensors)]
    outs = [torch.empty_like(wide[0]) for _ in range(kernel.outputs)]
    type_ = _TYPES[inside]

    def pointers(items: list[Tensor]) -> Any:
        return (ctypes.c_void_p * len(items))(*(item.data_ptr() for item in items))

    given = [numbers[name] for name in kernel.numbers]
    getattr(_library(), f"{kernel.name}_{type_}")(
        ctypes.c_long(wide[0].numel()),
        pointers(wide),
        pointers(outs),
        (ctypes.c_double * len(given))(*given),
    )
    found = tuple(out.to(common) for out in outs)
    return found if kernel.outputs > 1 else found[0]


def install(patch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the kernels run wherever they would there."""
    _library()
    patch.setattr(_fused, "launch", launch)
    patch.setattr(_fused, "_WORKS", _WORKS)
    patch.setattr(_fused, "_on_gpu", lambda x: True)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert _fused.can_fuse(torch.ones(1, dtype=dtype))
