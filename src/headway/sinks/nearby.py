"""Paths as a person in this folder would type them. For text alone: machines get whole paths."""

from __future__ import annotations

import os
import re


def nearby(text: str) -> str:
    """The text with this folder cut off from the paths below it."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # somebody has removed it
        return text
    if here not in text or here == os.sep:
        return text
    # `/app/` is also in the middle of `/srv/app/`.
    return re.sub(rf"(?<![\w./\\~-]){re.escape(here)}(?=[^\s/])", "", text)
