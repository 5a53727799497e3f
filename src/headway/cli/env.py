"""`headway env` and `headway --version`: versions and devices."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from typing import Any

import click

from headway._version import __version__
from headway.cli import options
from headway.core.numbers import say_bytes
from headway.output.terminal import spinner

FRAMEWORKS = (
    "numpy",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "ray",
    "tensorboard",
    "wandb",
    "mlflow",
    "trackio",
    "safetensors",
)
"""Packages whose version is printed; none is imported."""


@click.command()
@options.output_format("text", "json")
def command(form: str) -> None:
    """Print versions and devices for a bug report."""
    with spinner("querying devices"):
        facts = environment()
    if form == "json":
        click.echo(json.dumps(facts, indent=2))
    else:
        _write(facts)


def environment() -> dict[str, Any]:
    """Versions and devices as plain data."""
    return {
        "schema": 1,
        "tool": "headway",
        "version": __version__,
        "command": "env",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "os": platform.platform(),
        "cores": _cores(),
        "memory_bytes": _memory_bytes(),
        "torch": torch_facts(),
        "packages": _packages(),
    }


def _cores() -> int:
    """Cores this process may use; in a container, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        from headway.guard.endings.host_memory import portable_memory

        return portable_memory().get("MemTotal")


def _packages() -> dict[str, str]:
    found = {}
    for name in FRAMEWORKS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write(facts: dict[str, Any]) -> None:
    from headway.output.terminal import TerminalPage

    page = TerminalPage(sys.stdout)
    memory = facts["memory_bytes"]
    rows = [
        ("headway", facts["version"]),
        ("python", facts["python"]),
        ("os", facts["os"]),
        ("cores", str(facts["cores"])),
        ("memory", "unknown" if memory is None else say_bytes(memory)),
        *_torch_rows(facts["torch"]),
        ("packages", ", ".join(f"{k} {v}" for k, v in facts["packages"].items()) or "none"),
    ]
    page.line(("Paste this into a bug report:", "dim"))
    page.gap()
    for name, value in rows:
        page.line((f"{name + ':':10}", "bold"), value, rest=" " * 10)


def _torch_rows(torch: dict[str, Any]) -> list[tuple[str, str]]:
    if torch["version"] is None:
        return [("torch", torch["problem"])]
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else torch["rocm"] or "CPU only"
    rows = [("torch", f"{torch['version']} ({build}), {torch['threads']} threads")]
    for device in torch["devices"]:
        works = [name for name, works in device["dtypes"].items() if works]
        details = [device["name"]]
        if device["capability"]:
            details.append(f"capability {device['capability']}")
        if device["memory_bytes"]:
            details.append(say_bytes(device["memory_bytes"]))
        details.append(f"dtypes: {', '.join(works) or 'none of the tested dtypes'}")
        rows.append((device["device"], ", ".join(details)))
    return rows


DTYPES = ("float32", "bfloat16", "float16")


def torch_facts() -> dict[str, Any]:
    """Version, build and devices of torch, or the reason why it cannot be imported."""
    try:
        import torch
    except ModuleNotFoundError as error:
        problem = "not installed" if error.name == "torch" else f"cannot be imported: {error}"
        return _no_torch(problem)
    except Exception as error:  # a broken installation may raise anything
        return _no_torch(f"cannot be imported: {type(error).__name__}: {error}")
    return {
        "version": torch.__version__,
        "problem": None,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "threads": torch.get_num_threads(),
        "devices": [_device(name) for name in _device_names()],
    }


def _no_torch(problem: str) -> dict[str, Any]:
    nothing = {"version": None, "cuda": None, "rocm": None, "threads": None}
    return {**nothing, "problem": problem, "devices": []}


def _device_names() -> list[str]:
    import torch

    from headway.torch_adapters.compat import accelerator_type

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    kind = accelerator_type()
    return names if kind in ("cpu", "cuda") else [*names, kind]


def _device(device: str) -> dict[str, Any]:
    facts = {"device": device, "name": _processor(), "capability": None, "memory_bytes": None}
    if device.startswith("cuda"):
        facts |= _cuda_facts(device)
    return {**facts, "dtypes": {dtype: _computes_in(dtype, device) for dtype in DTYPES}}


def _cuda_facts(device: str) -> dict[str, Any]:
    import torch

    try:
        properties = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:  # the driver does not work
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
    """Whether a matrix product works in this dtype natively, without emulation."""
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


def version_line() -> str:
    """Versions of headway, Python and torch, without importing torch."""
    return f"headway {__version__} (Python {platform.python_version()}, {_torch()})"


def _torch() -> str:
    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return "no torch"
