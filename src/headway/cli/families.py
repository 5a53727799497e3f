"""The families of checks, by the first digit of their codes."""

from __future__ import annotations

FAMILIES = {
    "HD0": "the tool itself",
    "HD1": "loss",
    "HD2": "gradients",
    "HD3": "weights, activations, precision",
    "HD4": "optimizer and schedule",
    "HD5": "data",
    "HD6": "distributed training",
    "HD7": "checkpoints",
    "HD8": "speed and memory",
    "HD9": "set-up",
}


def family_of(code: str) -> str:
    """The family in words."""
    return FAMILIES.get(code[:3], "other packages")
