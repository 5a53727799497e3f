"""Models and modules under the names the user knows: without what torch wraps around them."""

from __future__ import annotations

from torch import nn

_WRAPPERS = {"", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def users_path(path: str) -> str:
    """A path as the user wrote it: without what torch.compile and its like wrap around modules."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def users_model(model: nn.Module) -> nn.Module:
    """The user's own module, without what torch.compile and DDP wrap around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
