"""The environments of the tools: installs them, and records what could not be installed."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

MAIN = (
    "transformers",
    "accelerate",
    "peft",
    "lightning",
    "wandb",
    "torch-audit",
    "trainpulse",
    "stabilityguard",
    "mldoct",
    "weightlens",
    "picklescan",
    "modelscan",
    "fickling",
    "safetensors",
    "click",
    "rich",
)
COMPOSER = "mosaicml==0.32.1"
"""Wants torch below 2.7.1, so it has an environment of its own."""
NAMED = ("torch", *MAIN, "mosaicml")
LOG = "setup.json"


def pythons(folder: Path) -> dict[str, Path]:
    composer = folder.with_name(folder.name + "-composer")
    return {"main": folder / "bin" / "python", "composer": composer / "bin" / "python"}


def make(folder: Path, root: Path) -> None:
    """torch first and pinned, so that nothing else chooses a torch of its own."""
    constraints = ["-c", str(root / "constraints.txt")]
    found = pythons(folder)
    failed: dict[str, str] = {}
    venv.create(folder, with_pip=True, clear=True)
    torch = next(
        line
        for line in (root / "constraints.txt").read_text().splitlines()
        if line[:7] == "torch=="
    )
    for package in (torch, *MAIN):
        told = _install(found["main"], [package, *constraints])
        if told:
            failed[package] = told
    told = _install(found["main"], ["--dry-run", COMPOSER, *constraints])
    if told:
        failed["mosaicml beside this torch, so Composer has an older one"] = told
    venv.create(found["composer"].parents[1], with_pip=True, clear=True)
    told = _install(found["composer"], [COMPOSER])
    if told:
        failed["mosaicml"] = told
    (folder / LOG).write_text(json.dumps(failed, indent=2))
    for name, why in failed.items():
        print(f"{name}: not installed: {why}", file=sys.stderr)


def _install(python: Path, arguments: list[str]) -> str:
    """Nothing, or what pip said when it would not."""
    print("pip install", *arguments, flush=True)
    try:
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *arguments],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "took longer than half an hour"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else " ".join(errors)[:500] or done.stderr[-300:]


def problems(folder: Path) -> dict[str, str]:
    path = folder / LOG
    found: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def versions(python: Path) -> dict[str, str]:
    if not python.exists():
        return {}
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [str(python), "-c", code, *NAMED], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found
