"""The order people expect of names with numbers in them."""

from __future__ import annotations

import re


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that puts `version_10` after `version_9`."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts if part]
