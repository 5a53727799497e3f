"""Shared by all tests. A defect of the guard must be seen here, not shielded away."""

from __future__ import annotations

import os

os.environ.setdefault("HEADWAY_STRICT", "1")
