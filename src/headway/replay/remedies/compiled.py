"""Whether torch.compile is at work.

Importing its machinery takes seconds, so nobody here does: what it has not loaded, it did not
compile.
"""

from __future__ import annotations

import sys

from torch import nn


def in_use() -> bool:
    return "torch._dynamo" in sys.modules


def is_compiled(model: nn.Module) -> bool:
    """Whether it, or a part of it, was compiled."""
    if not in_use():
        return False
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )
