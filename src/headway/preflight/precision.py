"""The precision somebody asked the check to run in, put over the script's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def asked_precision(dtype: str | None) -> Iterator[None]:
    """`bf16` or `fp16`: everything runs under autocast; `none`: nothing does; None: as it is."""
    if dtype is None:
        yield
    elif dtype == "none":
        with _no_autocast():
            yield
    else:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.autocast(kind, dtype=DTYPES[dtype]):
            yield


@contextmanager
def _no_autocast() -> Iterator[None]:
    """The script's autocast regions are entered with autocast off."""
    original: Any = torch.autocast.__enter__

    def enter(self: Any) -> Any:
        self._enabled = False
        return original(self)

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = original  # type: ignore[method-assign]
