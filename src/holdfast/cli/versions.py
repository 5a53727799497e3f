"""The line of `holdfast --version`: what is asked first when something does not work."""

from __future__ import annotations

import platform
from importlib import metadata

from holdfast._version import __version__


def version_line() -> str:
    """holdfast, the Python it runs in, and the torch beside it, which is not imported."""
    return f"holdfast {__version__} (Python {platform.python_version()}, {_torch()})"


def _torch() -> str:
    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return "no torch"
