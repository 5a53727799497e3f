"""Whether a column of the inputs is the label.

The inputs of the model and the targets of the loss are put side by side for the first few hundred
samples, and each column is compared with the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from headway.live.scan import tensors_in
from headway.preflight.forwards import trains
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings
from headway.preflight.tell_tale import tell_tale

ENOUGH = 512
"""Samples after which no more are kept."""
FEWEST = 64
MOST_COLUMNS = 4096
MOST_CLASSES = 20
RAREST = 5
"""Samples that a class must have at least to count as one that varies."""


class LabelCopy(Observer):
    """Keeps a few hundred samples."""

    functions = spellings(
        "cross_entropy",
        "nll_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
    )

    def start(self) -> None:
        self._inputs: Tensor | None = None
        self._place: dict[str, Any] | None = None
        self._drawn: list[Tensor] = []
        self._columns: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._done = False
        self._made: list[ref[Any]] = []
        """What a frozen model gave last: features, no table."""
        self._computed = False
        self._flat = True
        """Whether samples are rows of a table: numbers side by side, no image, no sequence."""

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        if not self._done:
            self._drawn = list(tensors_in(batch))[:4]

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if self._done:
            return
        if not trains(module, output):
            self._made = [ref(item) for item in tensors_in([output])][-4:]
            return
        given = [item for item in tensors_in([list(args), dict(kwargs)]) if item.ndim >= 2]
        floats = [item for item in given if item.is_floating_point() and not item.requires_grad]
        if not floats:
            return
        self._inputs = floats[0].detach()
        self._computed = any(made() is floats[0] for made in self._made)
        labels = [item for item in self._drawn if _is_label(item, len(self._inputs))]
        if len(labels) == 1 and len(self._drawn) == 2:
            self._keep(labels[0])

    def function_ended(self, call: Call) -> None:
        target = call.argument(1, "target")
        if self._done or self._inputs is None or not torch.is_grad_enabled():
            return
        if isinstance(target, Tensor) and _is_label(target, len(self._inputs)):
            self._keep(target.detach())

    def step_ended(self, optimizer: Any) -> None:
        if not self._done and sum(map(len, self._labels)) >= ENOUGH:
            self._judge()

    def finished(self) -> None:
        if not self._done and sum(map(len, self._labels)) >= FEWEST:
            self._judge()
        self._inputs, self._drawn = None, []

    def _keep(self, label: Tensor) -> None:
        inputs, self._inputs = self._inputs, None
        if inputs is None or not len(inputs) or inputs[0].numel() > MOST_COLUMNS:
            return
        columns = inputs.flatten(1).double().cpu()
        if self._columns and self._columns[0].shape[1] != columns.shape[1]:
            return
        self._place = self._place or self.scene.place()
        self._flat = self._flat and inputs.ndim == 2 and not self._computed
        self._columns.append(columns)
        self._labels.append(label.reshape(-1).double().cpu())

    def _judge(self) -> None:
        self._done = True
        columns, labels = torch.cat(self._columns), torch.cat(self._labels)
        self._columns, self._labels, self._inputs = [], [], None
        values, counts = labels.unique(return_counts=True)
        classes = len(values) <= MOST_CLASSES
        varies = len(values) > 1 and (not classes or int(counts.min()) >= RAREST)
        if not varies or not bool(torch.isfinite(columns).all()):
            return
        likeness = _likeness(columns, labels)
        best = int(likeness.argmax())
        others = torch.cat([likeness[:best], likeness[best + 1 :]])
        varied = int((columns.std(dim=0) > 0).sum())
        one_hot = _one_hot(columns, labels, values) if classes and len(values) > 2 else []
        self.evidence.tell(
            "label-copy",
            {
                "classes": len(values) if classes else None,
                "columns": varied,
                "column": best,
                "likeness": float(likeness[best]),
                "next": float(others.max()) if len(others) else 0.0,
                "one_hot": one_hot,
                **(tell_tale(columns, labels, values) if classes and self._flat else {}),
                "samples": len(labels),
                "place": self._place,
            },
        )


def _is_label(tensor: Tensor, samples: int) -> bool:
    single = tensor.ndim == 1 or (tensor.ndim == 2 and tensor.shape[1] == 1)
    return single and len(tensor) == samples and tensor.dtype != torch.bool


def _likeness(columns: Tensor, label: Tensor) -> Tensor:
    """|correlation| of every column with the label; 0 for a column that does not vary."""
    centred = columns - columns.mean(dim=0)
    other = label - label.mean()
    size = centred.norm(dim=0) * other.norm()
    found = (centred * other[:, None]).sum(dim=0).abs() / size.clamp_min(1e-300)
    return torch.where(size > 0, found, torch.zeros_like(found)).clamp_max(1.0)


def _one_hot(columns: Tensor, labels: Tensor, values: Tensor) -> list[int]:
    """The columns that mark one class each; empty unless every class has one."""
    found = []
    for value in values.tolist():
        likeness = _likeness(columns, (labels == value).double())
        best = int(likeness.argmax())
        if float(likeness[best]) < 0.999:
            return []
        found.append(best)
    return found
