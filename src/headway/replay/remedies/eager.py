"""Without torch.compile: what was compiled runs as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headway.replay.remedies.base import Remedy
from headway.replay.scene import Scene


class Eager(Remedy):
    key = "eager"
    text = 'Run without torch.compile, or call `torch.compiler.set_stance("force_eager")`'
    safe = True

    @contextmanager
    def applied(self, scene: Scene) -> Iterator[None]:
        with torch.compiler.set_stance("force_eager"):
            yield
