"""What does not work with torch 2.6, the oldest we support; docs/versions.md tells users."""

from __future__ import annotations

from importlib import metadata

SHARDS_ON_CPU = tuple(map(int, metadata.version("torch").split(".")[:2])) >= (2, 7)
"""Before, `fully_shard` on the CPU ends with "'Stream' object has no attribute 'record_event'"."""

CHECKPOINTS_COMPILED = SHARDS_ON_CPU
"""Before, statistics of BatchNorm differ where a checkpointed model is compiled."""
