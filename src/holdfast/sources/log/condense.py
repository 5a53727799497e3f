"""Which rows of a very long log are looked at closely."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.log.names import Named
from holdfast.sources.log.table import Table


def kept_rows(table: Table, names: Mapping[str, Named]) -> NDArray[np.int64] | None:
    """The rows that checks are fed; None: all of them."""
    return None
