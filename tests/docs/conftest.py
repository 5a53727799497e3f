"""The folder of the site's own code, which is no package."""

from __future__ import annotations

import sys
from pathlib import Path

for place in (Path(__file__).parent, Path(__file__).parents[2] / "docs" / "site"):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
