"""The user's line in a traceback."""

from __future__ import annotations

import traceback
from typing import Any

from headway.torch_tools.places import Place, users_own


def crash_place(error: BaseException) -> dict[str, Any] | None:
    """The innermost line of the user's that an error went through, as facts carry it."""
    frames = traceback.extract_tb(error.__traceback__)
    found = users_own(Place(f.filename, f.lineno or 0, f.name) for f in reversed(frames))
    return None if found is None else found.to_dict()
