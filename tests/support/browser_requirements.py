"""What the browser tests need, and whether it is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

HERE = Path(__file__).parents[1] / "browser"
CHROMIUMS = ("chromium-headless-shell", "chromium", "google-chrome")


def missing() -> str | None:
    """What is not there; None when all is."""
    if shutil.which("node") is None:
        return "there is no node"
    if not (HERE / "node_modules" / "playwright-core").is_dir():
        return "playwright-core is not installed"
    if not os.environ.get("HEADWAY_CHROMIUM") and not any(map(shutil.which, CHROMIUMS)):
        return "there is no Chromium"
    return None
