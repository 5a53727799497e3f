"""Adapters: the guard inside the training loop of a framework, in one line each.

    transformers.py   HeadwayCallback for the Hugging Face Trainer
    lightning.py      HeadwayCallback for lightning.pytorch and pytorch_lightning
    accelerate.py     guard(accelerator, model, optimizer)
    ray.py            guard(model, optimizer) and report(guard, metrics) in a Ray Train worker
    deepspeed.py      watch(engine): observes only, DeepSpeed owns its step

Importing this package imports neither torch nor a framework; each module imports its own framework.
`headway.integrations.lightning` works after a plain `import headway`.
"""

from __future__ import annotations

import importlib
from typing import Any

_ADAPTERS = ("accelerate", "deepspeed", "lightning", "ray", "transformers")


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return importlib.import_module(f"headway.integrations.{name}")
    raise AttributeError(f"module 'headway.integrations' has no attribute {name!r}")
