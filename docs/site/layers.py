"""The import layers for the architecture page, from the contract that `make lint` enforces."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- import layers -->"


def drawing() -> str:
    """The layers, top to bottom, as a fenced block."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [layers] = [item["layers"] for item in contracts if item["id"] == "layers"]
    shown = [row.replace("headway.", "").replace("(", "").replace(")", "") for row in layers]
    return "\n".join(["```text", *shown, "```"])
