"""How many samples of a batch reach the model, against how many the script means to take.

Judged for every loader by itself: one that was made without a size, late in a run, is a fault of
its own however many good batches came before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from headway.live import scan
from headway.live.told_after import told_after
from headway.preflight.collate_source import taking_line
from headway.preflight.named_sizes import is_batch_size, sizes_in, without_a_size
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings
from headway.torch_tools.places import is_installed

UNBATCHED = {"linear": 1, "conv1d": 2, "conv2d": 3, "conv3d": 4}
"""Layers, and the axes of a single sample."""
SIZED = 50
"""Steps of one loader whose batch size is looked at."""
MOST_LOADERS = 32


@dataclass(slots=True)
class Taken:
    """The batches of one loader, or of none."""

    made_at: dict[str, Any] | None = None
    unsized: bool = False
    """Whether the line that made it says nothing of a size."""
    size: int | None = None
    first: int = 0
    drawn: int | None = None
    place: dict[str, Any] | None = None
    whole: int = 0
    collapsed: list[tuple[int, int, str]] = field(default_factory=list)


class BatchSizes(Observer):
    """Tells of each loader (topic `batch-size`)."""

    functions = spellings(*UNBATCHED)

    def start(self) -> None:
        self._taken: dict[int, Taken] = {}
        self._kept: list[Any] = []
        self._loader: Any = None
        self._made: WeakKeyDictionary[Any, dict[str, Any] | None] = WeakKeyDictionary()
        self._sizes: list[tuple[int, int]] = []
        """(rows the model got, its longest axis) of forwards since the last step."""
        self.scene.undo.enter_context(told_after(DataLoader, "__init__", self._loader_made))

    def _loader_made(self, loader: Any, args: Any, result: Any) -> None:
        self._made[loader] = self.scene.place()

    # Loaders.

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._loader = loader
        taken = self._of(loader)
        if taken is not None:
            taken.drawn = scan.batch_size(batch)

    def _of(self, loader: Any) -> Taken | None:
        known = self._taken.get(id(loader))
        if known is None and len(self._taken) < MOST_LOADERS:
            known = self._taken[id(loader)] = Taken(first=self.scene.step)
            if loader is not None:
                self._kept.append(loader)  # so that no identity is given twice
                known.made_at = self._made.get(loader)
                known.unsized = without_a_size(known.made_at)
                size = getattr(loader, "batch_size", None)
                if size is None:
                    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
                known.size = size if isinstance(size, int) else None
        return known

    # Forwards.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or not module.training:
            return
        data = next((item for item in args if isinstance(item, Tensor)), None)
        if data is None or not data.ndim or len(self._sizes) >= 4096:
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        tensors = [item for item in args if isinstance(item, Tensor) and item.ndim]
        self._sizes.append((data.shape[0], max(max(item.shape) for item in tensors)))
        taken = self._of(self._loader)
        if taken is not None and taken.place is None:
            taken.place = self.scene.place()

    def function_ended(self, call: Call) -> None:
        """A layer that is given a sample without the axis of the batch."""
        data = call.args[0] if call.args else None
        if not self._sizes or not torch.is_grad_enabled() or not isinstance(data, Tensor):
            return
        if not data.requires_grad and data.ndim == UNBATCHED.get(call.name):
            self._sizes[-1] = (1, 1)

    def step_ended(self, optimizer: Optimizer) -> None:
        sizes, self._sizes = self._sizes, []
        taken = self._of(self._loader)
        if not sizes or taken is None or len(taken.collapsed) + taken.whole >= SIZED:
            return
        named = self._named()
        meant, whence = self._meant(named, taken)
        if meant is None:
            return
        # Whatever the layout, some axis of the input is the batch; pieces of one add up.
        fed = max(max(rows, 0) for rows, _ in sizes)
        longest = max(length for _, length in sizes)
        pieces = fed > 1 and fed in named.values()
        if pieces or fed * len(sizes) * 4 > meant or (longest >= meant and longest % meant == 0):
            taken.whole += 1
        else:
            taken.collapsed.append((fed * len(sizes), meant, whence))

    def _meant(self, named: Mapping[str, int], taken: Taken) -> tuple[int | None, str]:
        """How many samples a step is meant to have, and who says so."""
        world = 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            world = torch.distributed.get_world_size()
        told = [size // world for name, size in named.items() if is_batch_size(name)]
        found = [(taken.size or 0, "the loader's batch_size")]
        found.append((min((size for size in told if size >= 8), default=0), "the script"))
        size, whence = max(found)
        return (size, whence) if size >= 8 else (None, "")

    def _named(self) -> dict[str, int]:
        """The sizes of batches, whole ones or pieces, that the script's variables name."""
        named: dict[str, int] = {}
        for frame in self.scene.frames():
            if not is_installed(frame.f_code.co_filename):
                named |= sizes_in(frame)
        return named

    # The end.

    def finished(self) -> None:
        others_whole = any(taken.whole > len(taken.collapsed) for taken in self._taken.values())
        loaders: Sequence[Any] = [*self._kept]
        for at, taken in self._taken.items():
            if not taken.collapsed and not taken.whole:
                continue
            fed_rows, meant, whence = max(taken.collapsed, default=(0, 0, ""))
            loader = next((item for item in loaders if id(item) == at), None)
            self.evidence.tell(
                "batch-size",
                {
                    "collapsed": len(taken.collapsed),
                    "whole": taken.whole,
                    "samples": fed_rows,
                    "meant": meant,
                    "whence": whence,
                    "drawn": taken.drawn,
                    # A second loader that was given a size of its own is somebody's wish.
                    "wanted": others_whole and not taken.unsized and fed_rows == taken.size,
                    "place": self._line(loader, taken),
                    "first_step": taken.first,
                },
            )

    def _line(self, loader: Any, taken: Taken) -> dict[str, Any] | None:
        """Where the samples are lost: as far up as it can be told."""
        if loader is None or taken.drawn is None or not taken.collapsed:
            return taken.place
        if taken.size is not None and taken.drawn * 4 <= taken.size:
            return taking_line(getattr(loader, "collate_fn", None)) or taken.place
        if taken.size is not None and taken.drawn <= taken.size < taken.collapsed[0][1]:
            return taken.made_at or taken.place
        return taken.place
