"""`headway env`"""

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
from headway.cli.waiting import waiting
from headway.core.numbers import say_bytes

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
"""What a training may stand on; asked for by name, never imported."""


@click.command()
@options.output_format("text", "json")
def command(form: str) -> None:
    """Versions and devices, to paste into a bug report."""
    with waiting("asking torch about its devices"):
        facts = environment()
    if form == "json":
        click.echo(json.dumps(facts, indent=2))
    else:
        _write(facts)


def environment() -> dict[str, Any]:
    """What a reader of a bug report asks first."""
    from headway.cli.torch_facts import torch_facts

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
    """The cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _packages() -> dict[str, str]:
    found = {}
    for name in FRAMEWORKS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write(facts: dict[str, Any]) -> None:
    from headway.sinks.page import Page

    page = Page(sys.stdout)
    memory = facts["memory_bytes"]
    rows = [
        ("headway", facts["version"]),
        ("python", facts["python"]),
        ("os", facts["os"]),
        ("cores", str(facts["cores"])),
        ("memory", "unknown" if memory is None else say_bytes(memory)),
        *_torch_rows(facts["torch"]),
        ("packages", ", ".join(f"{k} {v}" for k, v in facts["packages"].items()) or "none of note"),
    ]
    page.line(("Copy this into your report:", "dim"))
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
        details.append(f"computes in {', '.join(works) or 'nothing that was tried'}")
        rows.append((device["device"], ", ".join(details)))
    return rows
