"""Data that give the answer away: label columns, and validation rows seen in training."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler, SequentialSampler, Subset

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.source_lines import find_line
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.model_copy import is_training_forward
from headway.torch_adapters.op_schema import TASK_LOSSES
from headway.torch_adapters.tensor_values import batch_tensors

# Columns of a table that give the class away: each class has values of its own there.

# A threshold that separates the classes is nothing strange by itself (`x > 0` may be the task).
# What no honest measurement has is one class in which every sample has the very same number and no
# other class has it: a column that was filled in when the outcome was known. A gap between the
# classes that is wider than the classes are is strange where all other columns tell next to
# nothing.

FEWEST_PER_CLASS = 16
"""Samples of a class."""
SPARSE_COLUMNS = 0.5
"""Share of columns that are often at their smallest value: activations, pixels, counts of words."""
OFTEN_SMALLEST = 0.05


def find_revealing_columns(columns: Tensor, labels: Tensor, values: Tensor) -> dict[str, Any]:
    """Those columns, and what the others are like: how many overlap, how far classes are apart."""
    members = [columns[labels == value] for value in values.tolist()]
    if len(members) < 2 or min(map(len, members)) < FEWEST_PER_CLASS:
        return {}
    varied = columns.std(dim=0) > 0
    at_least = (columns == columns.amin(dim=0)).double().mean(dim=0) > OFTEN_SMALLEST
    if float((at_least & varied).sum()) > SPARSE_COLUMNS * float(varied.sum()):
        return {}
    lows = torch.stack([rows.amin(dim=0) for rows in members])
    highs = torch.stack([rows.amax(dim=0) for rows in members])
    means = torch.stack([rows.mean(dim=0) for rows in members])
    width = torch.stack([rows.std(dim=0) for rows in members]).amax(dim=0)
    order = lows.argsort(dim=0)
    lows, highs = lows.gather(0, order), highs.gather(0, order)
    gaps = (lows[1:] - highs[:-1]).amin(dim=0)
    apart = gaps > 0
    constant = apart & (lows == highs).any(dim=0)
    marked = constant | (apart & (gaps > width))
    distance = (means.amax(dim=0) - means.amin(dim=0)) / width.clamp_min(1e-12)
    rest = varied & ~apart
    chosen = constant if bool(constant.any()) else marked
    best = int(torch.where(chosen, gaps, torch.full_like(gaps, -1.0)).argmax())
    return {
        "marked": marked.nonzero().flatten()[:20].tolist(),
        "marked_best": best if bool(chosen[best]) else None,
        "marked_constant": bool(constant[best]),
        "marked_count": int(marked.sum()),
        "overlapping": int(rest.sum()),
        "others_apart": float(distance[rest].max()) if bool(rest.any()) else None,
    }


# Whether a column of the inputs is the label.

# The inputs of the model and the targets of the loss are put side by side for the first few
# hundred samples, and each column is compared with the target.

ENOUGH = 512
"""Samples after which no more are kept."""
FEWEST_SAMPLES = 64
MOST_COLUMNS = 4096
MOST_CLASSES = 20
RAREST = 5
"""Samples that a class must have at least to count as one that varies."""


class LabelCopy(Observer):
    """Keeps a few hundred samples."""

    functions = find_aliases(*TASK_LOSSES, "soft_margin_loss")

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
            self._drawn = list(batch_tensors(batch))[:4]

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if self._done:
            return
        if not is_training_forward(module, output):
            self._made = [ref(item) for item in batch_tensors([output])][-4:]
            return
        given = [item for item in batch_tensors([list(args), dict(kwargs)]) if item.ndim >= 2]
        floats = [item for item in given if item.is_floating_point() and not item.requires_grad]
        if not floats:
            return
        self._inputs = floats[0].detach()
        self._computed = any(made() is floats[0] for made in self._made)
        labels = [item for item in self._drawn if _is_label(item, len(self._inputs))]
        if len(labels) == 1 and len(self._drawn) == 2:
            self._keep(labels[0])

    def function_ended(self, call: TorchCall) -> None:
        target = call.argument(1, "target")
        if self._done or self._inputs is None or not torch.is_grad_enabled():
            return
        if isinstance(target, Tensor) and _is_label(target, len(self._inputs)):
            self._keep(target.detach())

    def step_ended(self, optimizer: Any) -> None:
        if not self._done and sum(map(len, self._labels)) >= ENOUGH:
            self._judge()

    def finished(self) -> None:
        if not self._done and sum(map(len, self._labels)) >= FEWEST_SAMPLES:
            self._judge()
        self._inputs, self._drawn = None, []

    def _keep(self, label: Tensor) -> None:
        inputs, self._inputs = self._inputs, None
        if inputs is None or not len(inputs) or inputs[0].numel() > MOST_COLUMNS:
            return
        columns = inputs.flatten(1).double().cpu()
        if self._columns and self._columns[0].shape[1] != columns.shape[1]:
            return
        self._place = self._place or self.script.place()
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
        self.evidence.record(
            "label-copy",
            {
                "classes": len(values) if classes else None,
                "columns": varied,
                "column": best,
                "likeness": float(likeness[best]),
                "next": float(others.max()) if len(others) else 0.0,
                "one_hot": one_hot,
                **(
                    find_revealing_columns(columns, labels, values)
                    if classes and self._flat
                    else {}
                ),
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


# Whether a model is validated on rows it was trained on.

# Rows are identified by a hash of their content. Validation is a forward in eval mode without a
# graph; every model is looked at by itself, so that the folds of a cross validation stay apart.
# What the training itself draws from is not validation: many scripts report results on both.

MOST_SHARED_ROWS = 60_000
MOST_SHARED_BYTES = 1 << 18
"""Of a row."""
FEWEST_ELEMENTS = 4
RECENT = 200
"""Recent training rows that show whether new ones still appear."""


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
    inside: bool = False
    """Whether a loader of validation reads a part of a data set that is trained on as a whole."""
    loaders: list[Any] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    """What the training batches were drawn from: datasets, or loaders of a part of one."""


SPLITS = (
    r"\w*(oversampl|Oversampl|OverSampl)\w*\(|resample\(|duplicate\(|repeat_interleave\(",
    r"(train_test_split|random_split|KFold|ShuffleSplit)\(|\bsplit\w*\s*=|int\(\s*0?\.\d+\s*\*",
    r"randperm\(|permutation\(|\.shuffle\(",
    r"\b(\w+_)?(val|valid|validation|test|eval|dev|held_?out)(_\w+|set|x|y)?\s*(,[^=]*)?="
    r".*(Subset\(|\[.*:)",
)
"""What makes copies of rows, what splits them, what mixes them before a split by hand, and what
takes the rows of a validation set."""


class SharedRows(Observer):
    """Keeps hashes of rows."""

    def start(self) -> None:
        self._place: dict[str, Any] | None = None
        self._models: dict[int, tuple[nn.Module, _Seen]] = {}
        self._source: Any = None
        self._loader: Any = None

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._loader = loader
        whole = type(getattr(loader, "sampler", None)) in (RandomSampler, SequentialSampler)
        self._source = loader.dataset if whole else loader

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        training = is_training_forward(module, output) and module.training
        if not training and (torch.is_grad_enabled() or module.training):
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        _, seen = self._models.setdefault(id(module), (module, _Seen()))
        if len(seen.trained) + len(seen.validated) > MOST_SHARED_ROWS:
            return
        known = any(item is self._source for item in seen.sources)
        if not training and known:
            return
        hashes = list(_hashes([list(args), dict(kwargs)]))
        if training:
            seen.within += len(hashes) - len(set(hashes))
            seen.rows += len(hashes)
            seen.repeats = [*seen.repeats, *(row in seen.trained for row in hashes)][-RECENT:]
            seen.trained.update(hashes)
            if not known and self._source is not None:
                seen.sources = [*seen.sources[-7:], self._source]
                seen.loaders = [*seen.loaders[-7:], self._loader]
        elif seen.trained:
            seen.validated.update(hashes)
            seen.shared.update(row for row in hashes if row in seen.trained)
            self._find_whole(seen)
            if seen.shared and self._place is None:
                lines = (find_line(self.script, pattern) for pattern in SPLITS)
                self._place = next((line for line in lines if line), None)

    def _find_whole(self, seen: _Seen) -> None:
        """Note where a loader trains on all of the data set that validation takes a part of."""
        part = getattr(self._loader, "dataset", None)
        if seen.inside or not isinstance(part, Subset):
            return
        for loader, source in zip(seen.loaders, seen.sources, strict=True):
            if source is part.dataset:
                seen.inside = True
                self._place = self.script.loader_lines.get(loader)

    def finished(self) -> None:
        for module, seen in self._models.values():
            if not seen.validated or not seen.repeats:
                continue
            self.evidence.record(
                "shared-rows",
                {
                    "module": self.script.path_of(module),
                    "validated": len(seen.validated),
                    "shared": len(seen.shared),
                    "trained": len(seen.trained),
                    "covered": sum(seen.repeats) / len(seen.repeats),
                    "alike": seen.within / max(seen.rows, 1),
                    "inside": seen.inside,
                    **({} if self._place is None else {"place": self._place}),
                },
            )
        self._models, self._source, self._loader = {}, None, None


def _hashes(given: Any) -> Iterator[int]:
    """One for each row of the first input that has rows."""
    for tensor in batch_tensors(given):
        rows = tensor.detach()
        if rows.ndim < 2 or rows.layout is not torch.strided or rows.requires_grad:
            continue
        if not rows[0].numel() >= FEWEST_ELEMENTS if len(rows) else True:
            return
        if rows[0].nbytes > MOST_SHARED_BYTES or rows.is_meta:
            return
        flat: Tensor = rows.reshape(len(rows), -1).cpu().contiguous()
        whole = flat.view(torch.uint8).numpy()
        for row in whole:
            content = row.tobytes()
            yield zlib.crc32(content) << 32 | zlib.adler32(content)
        return
