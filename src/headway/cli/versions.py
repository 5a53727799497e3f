"""The line of `headway --version`: what is asked first when something does not work."""

from __future__ import annotations

import platform
from importlib import metadata

from headway._version import __version__


def version_line() -> str:
    """headway, the Python it runs in, and the torch beside it, which is not imported."""
    return f"headway {__version__} (Python {platform.python_version()}, {_torch()})"


def _torch() -> str:
    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return "no torch"
