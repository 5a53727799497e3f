"""Whether a model is validated on rows it was trained on.

Rows are told by a hash of their content. Validation is a forward in eval mode without a graph;
every model is looked at by itself, so that the folds of a cross validation stay apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.live.scan import tensors_in
from headway.preflight.forwards import trains
from headway.preflight.observer import Observer

MOST_ROWS = 60_000
MOST_BYTES = 1 << 18
"""Of a row."""
FEWEST_ELEMENTS = 4
RECENT = 200
"""Training rows by which it is told whether there are still new ones."""


@dataclass(slots=True)
class _Seen:
    trained: set[int] = field(default_factory=set)
    validated: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    repeats: list[bool] = field(default_factory=list)
    """Of the last training rows: whether they had been trained on before."""
    within: int = 0
    """Rows that were there twice in one batch."""
    rows: int = 0


class SharedRows(Observer):
    """Keeps hashes of rows."""

    def start(self) -> None:
        self._models: dict[int, tuple[nn.Module, _Seen]] = {}

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        training = trains(module, output) and module.training
        if not training and (torch.is_grad_enabled() or module.training):
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        _, seen = self._models.setdefault(id(module), (module, _Seen()))
        if len(seen.trained) + len(seen.validated) > MOST_ROWS:
            return
        hashes = list(_hashes([list(args), dict(kwargs)]))
        if training:
            seen.within += len(hashes) - len(set(hashes))
            seen.rows += len(hashes)
            seen.repeats = [*seen.repeats, *(row in seen.trained for row in hashes)][-RECENT:]
            seen.trained.update(hashes)
        elif seen.trained:
            seen.validated.update(hashes)
            seen.shared.update(row for row in hashes if row in seen.trained)

    def finished(self) -> None:
        for module, seen in self._models.values():
            if not seen.validated or not seen.repeats:
                continue
            self.evidence.tell(
                "shared-rows",
                {
                    "module": self.scene.path_of(module),
                    "validated": len(seen.validated),
                    "shared": len(seen.shared),
                    "trained": len(seen.trained),
                    "covered": sum(seen.repeats) / len(seen.repeats),
                    "alike": seen.within / max(seen.rows, 1),
                },
            )
        self._models = {}


def _hashes(given: Any) -> Iterator[int]:
    """One for each row of the first input that has rows."""
    for tensor in tensors_in(given):
        rows = tensor.detach()
        if rows.ndim < 2 or rows.layout is not torch.strided or rows.requires_grad:
            continue
        if not rows[0].numel() >= FEWEST_ELEMENTS if len(rows) else True:
            return
        if rows[0].nbytes > MOST_BYTES or rows.is_meta:
            return
        flat: Tensor = rows.reshape(len(rows), -1).cpu().contiguous()
        whole = flat.view(torch.uint8).numpy()
        for row in whole:
            content = row.tobytes()
            yield zlib.crc32(content) << 32 | zlib.adler32(content)
        return
