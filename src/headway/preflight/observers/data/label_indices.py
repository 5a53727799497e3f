"""Labels that are used as an index."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.nested_state import find_tensors

# Labels that pick an entry by hand: `log_probs[arange(n), labels]`. There -1 is the last class,
# without an error, and `gather` raises one that says nothing about labels.

INDEX_TOPIC = "label-index"
INDEX_STEPS = 8
"""First steps that are inspected."""
MOST_INDICES = 1 << 20


class LabelIndices(Observer):
    """Finds labels of -1 that are used as an index, and whether their entries are trained on."""

    functions = (*find_aliases("__getitem__"), *find_aliases("gather", "take_along_dim"))

    def start(self) -> None:
        self._drawn: set[int] = set()
        self._said: set[str] = set()

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        if self.script.step < INDEX_STEPS:
            self._drawn = {tensor.data_ptr() for _, tensor in find_tensors(batch)}

    def function_begins(self, call: TorchCall) -> None:
        if call.name == "__getitem__" or self.script.step >= INDEX_STEPS:
            return
        source, axis = call.argument(0, "input"), call.argument(1, "dim")
        index = call.argument(2, "index")
        if call.name == "take_along_dim":
            axis, index = call.argument(2, "dim"), call.argument(1, "indices")
        if not isinstance(index, Tensor) or not isinstance(axis, int) or not _is_scores(source):
            return
        classes = int(source.shape[axis])
        bad = _outside(index, -classes if call.name == "take_along_dim" else 0, classes)
        if bad is not None:
            self._report(call.name, index, bad, classes, raised=True)

    def function_ended(self, call: TorchCall) -> None:
        if call.name != "__getitem__" or self.script.step >= INDEX_STEPS:
            return
        source, key = call.args[0], call.args[1]
        keys = key if isinstance(key, tuple) else (key,)
        label = keys[-1]
        result = call.result
        if not isinstance(label, Tensor) or label.is_floating_point() or not _is_scores(source):
            return
        if label.dtype is torch.bool or not isinstance(result, Tensor) or not result.requires_grad:
            return
        # One entry for each sample, or rows of a table for ids that come out of a loader.
        picks = len(keys) == source.ndim == 2 and _counts_up(keys[0])
        if not picks and not (len(keys) == 1 and label.data_ptr() in self._drawn):
            return
        axis = len(keys) - 1
        bad = _outside(label, 0, int(source.shape[axis]))
        if bad is None or bool((label[bad] != -1).any()) or result.shape[: label.ndim] != bad.shape:
            return
        # Entries that a mask takes out of the loss get a gradient of exactly 0.
        place, classes = self.script.place(), int(source.shape[axis])

        def arrives(gradient: Tensor) -> None:
            if bool((gradient[bad] != 0).any()):
                self._report("index", label, bad, classes, raised=False, place=place)

        result.register_hook(arrives)

    def _report(
        self,
        function: str,
        index: Tensor,
        bad: Tensor,
        classes: int,
        *,
        raised: bool,
        place: Any = None,
    ) -> None:
        place = place or self.script.place()
        if str(place) in self._said:
            return
        self._said.add(str(place))
        facts = {
            "function": function,
            "labels": index.numel(),
            "outside": int(bad.sum()),
            "outside_values": sorted({int(value) for value in index[bad][:1000]})[:5],
            "classes": classes,
            "raised": raised,
        }
        self.evidence.record(INDEX_TOPIC, facts if place is None else facts | {"place": place})


def _is_scores(source: Any) -> bool:
    return isinstance(source, Tensor) and source.requires_grad and source.ndim > 0


def _outside(index: Tensor, low: int, high: int) -> Tensor | None:
    """Which indices are outside; None if none are, or all."""
    if not 0 < index.numel() <= MOST_INDICES:
        return None
    bad = (index < low) | (index >= high)
    count = int(bad.sum())
    return bad if 0 < count < index.numel() else None


def _counts_up(index: Any) -> bool:
    """Whether an index is 0, 1, 2, …: one entry for each row."""
    if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype is torch.bool:
        return isinstance(index, range)
    return bool((index == torch.arange(len(index), device=index.device)).all())
