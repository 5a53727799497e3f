"""What torch says of itself and of its devices, where there is a torch."""

from __future__ import annotations

import platform
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")


def torch_facts() -> dict[str, Any]:
    """Version, build and devices; without torch, or with a broken one, what is the matter."""
    try:
        import torch
    except ModuleNotFoundError as error:
        problem = "not installed" if error.name == "torch" else f"cannot be imported: {error}"
        return _absent(problem)
    except Exception as error:  # a half-installed torch raises all sorts of things
        return _absent(f"cannot be imported: {type(error).__name__}: {error}")
    return {
        "version": torch.__version__,
        "problem": None,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "threads": torch.get_num_threads(),
        "devices": [_device(name) for name in _device_names()],
    }


def _absent(problem: str) -> dict[str, Any]:
    nothing = {"version": None, "cuda": None, "rocm": None, "threads": None}
    return {**nothing, "problem": problem, "devices": []}


def _device_names() -> list[str]:
    import torch

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def _device(device: str) -> dict[str, Any]:
    facts = {"device": device, "name": _processor(), "capability": None, "memory_bytes": None}
    if device.startswith("cuda"):
        facts |= _cuda_facts(device)
    return {**facts, "dtypes": {dtype: _computes_in(dtype, device) for dtype in DTYPES}}


def _cuda_facts(device: str) -> dict[str, Any]:
    import torch

    try:
        properties = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:  # a sick driver is worth a line of its own
        return {"name": f"not usable: {error}"}
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
            return next(names, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _computes_in(dtype: str, device: str) -> bool:
    """Whether it does, by doing it; what is only emulated does not count."""
    import torch

    try:
        one = torch.ones(8, 8, dtype=getattr(torch, dtype), device=device)
        works = bool(((one @ one) == 8).all())
        if device.startswith("cuda") and dtype == "bfloat16":
            with torch.cuda.device(device):
                return works and torch.cuda.is_bf16_supported(including_emulation=False)
        return works
    except (RuntimeError, TypeError, AssertionError):
        return False
