"""What does not work with torch 2.6 and 2.7, the oldest we support; docs/versions.md tells it."""

from __future__ import annotations

from importlib import metadata

_VERSION = tuple(map(int, metadata.version("torch").split(".")[:2]))

SHARDS_ON_CPU = _VERSION >= (2, 7)
"""Before, `fully_shard` on the CPU ends with "'Stream' object has no attribute 'record_event'"."""

AVERAGES_SHARDS = _VERSION >= (2, 8)
"""Before, gloo adds up where `fully_shard` asks for a mean: gradients are as many times too large
as there are ranks."""

CLIPS_BY_WHOLE_NORM = _VERSION >= (2, 8)
"""Before, `clip_grad_norm_` of shards adds its 1e-6 to each rank's part of the norm."""

CHECKPOINTS_COMPILED = _VERSION >= (2, 8)
"""Before, a compiled BatchNorm in a checkpointed part counts each batch twice."""
