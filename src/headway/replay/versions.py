"""What an incident happened under: versions, device, and the script that was running."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from headway._version import __version__


def versions(devices: Collection[str] = ()) -> dict[str, str]:
    """Of headway, torch and Python, and the name of the device: `devices` besides the host."""
    return {
        "headway": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": _device_name(devices),
    }


def differences(recorded: Mapping[str, Any]) -> list[str]:
    """What is another version here: reproducing may depend on it."""
    here = versions()
    return [
        f"{name} {recorded[name]} then, {here[name]} now"
        for name in ("torch", "python", "headway")
        if name in recorded and recorded[name] != here[name]
    ]


def script() -> dict[str, Any] | None:
    """How this process was started; None where no file was (a notebook, a shell)."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    spec = getattr(main, "__spec__", None)
    path = Path(file).absolute()
    return {
        "file": str(path),
        "module": None if spec is None else spec.name,
        "sha256": file_sha256(path),
        "argv": [str(word) for word in sys.argv[1:]],
        "cwd": os.getcwd(),
    }


def file_sha256(path: Path) -> str | None:
    """None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _device_name(devices: Collection[str]) -> str:
    if not devices:
        return f"cpu ({platform.machine()})"
    first = torch.device(min(devices))
    return torch.cuda.get_device_name(first) if first.type == "cuda" else first.type
