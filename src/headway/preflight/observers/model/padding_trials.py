"""Whether padding changes the outputs of a model: trials on a copy of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.preflight.observers.model.sequence_trials import (
    MOST_ELEMENTS,
    SequenceTrial,
    draws_random_numbers,
    find_tokens,
)
from headway.torch_adapters.model_copy import (
    ROUNDING_NOISE,
    CannotCopy,
    ForwardRun,
    ModelCopy,
    ModuleForward,
    TracedOp,
    copy_inputs,
    outputs_by_position,
)
from headway.torch_adapters.nested_state import find_tensors, map_tensors


class PaddedRow(NamedTuple):
    """The most padded row of a batch of tokens."""

    tokens: Tensor
    time: int
    """The axis of time in the input."""
    pad: int
    row: int
    content: int
    length: int
    rows: int

    @classmethod
    def of(cls, forward: ModuleForward) -> PaddedRow | None:
        """None where no input ends in padding of different lengths."""
        found = cls._of_tokens(forward) or cls._of_features(forward)
        return None if found is None or found._shares_length(forward) else found

    @classmethod
    def _of_features(cls, forward: ModuleForward) -> PaddedRow | None:
        """Rows of vectors, 0 where a mask that the model gets is 0 as well."""
        for features in forward.inputs:
            if features.ndim != 3 or not features.is_floating_point():
                continue
            rows, length, _ = features.shape
            mask = next(_masks(forward.inputs, (features == 0).all(-1)), None)
            if mask is None or rows < 4 or rows == length or features.numel() > MOST_ELEMENTS:
                continue
            counts = mask.sum(1)
            row, least = int(counts.argmin()), max(LEAST_PADDING, length // 4)
            content = int(counts[row])
            if counts.unique().numel() >= 3 and content >= 2 and length - content >= least:
                return cls(mask, 1, 0, row, content, length, rows)
        return None

    def _shares_length(self, forward: ModuleForward) -> bool:
        """Whether another input of this length has content where this row has padding."""
        for other in find_tokens(forward):
            if other.shape != self.tokens.shape or torch.equal(other, self.tokens):
                continue
            plain = other if self.time == 1 else other.t()
            if bool((plain[self.row, self.content :] != plain[self.row, -1]).any()):
                return True
        return False

    @classmethod
    def _of_tokens(cls, forward: ModuleForward) -> PaddedRow | None:
        known = {
            part.padding_idx
            for part in forward.module.modules()
            if isinstance(part, nn.Embedding) and part.padding_idx is not None
        }
        for tokens in find_tokens(forward):
            for time in (1, 0):
                plain = tokens if time == 1 else tokens.t()
                rows, length = plain.shape
                pad = int(plain[:, -1].mode().values)
                padded = plain == pad
                runs = padded.flip(1).long().cumprod(1).sum(1)
                least = max(LEAST_PADDING, length // 4)
                if rows < 4 or rows == length or (known and pad not in known):
                    continue
                # Padding stands at the end of rows and nowhere else.
                if not torch.equal(padded.sum(1), runs) or runs.unique().numel() < 3:
                    continue
                row = int(runs.argmax())
                content = length - int(runs[row])
                if int(runs[row]) >= least and content >= 2:
                    return cls(tokens, time, pad, row, content, length, rows)
        return None

    def cut(self, forward: ModuleForward, length: int) -> tuple[list[Any], dict[str, Any]]:
        """The inputs with this row alone and a number of its positions."""
        batch_axis = 1 - self.time

        def change(tensor: Tensor) -> Tensor:
            plain = tensor.detach()
            axes = list(plain.shape)
            if plain.ndim == 1 and axes[0] == self.rows:
                plain = plain.narrow(0, self.row, 1)
            elif plain.ndim > 1:
                axis = batch_axis if plain.shape[:2] == self.tokens.shape else 0
                if axes[axis] == self.rows:
                    plain = plain.narrow(axis, self.row, 1)
            for at, size in enumerate(plain.shape):
                if size == self.length:
                    plain = plain.narrow(at, 0, length)
            return plain.clone()

        changed = map_tensors([list(forward.args), dict(forward.kwargs)], change)
        return changed[0], changed[1]

    def outputs(self, run: ForwardRun, length: int, rows: int) -> Tensor | None:
        """(rows, numbers) of the first output that has one entry a sample or a position."""
        for output in run.outputs:
            found = outputs_by_position(output, rows, length, self.time)
            if found is not None:
                return found[:, : self.content].flatten(1)
            if output.ndim > 1 and output.shape[0] == rows:
                return output.flatten(1)
        alone = rows == 1 and not run.outputs and run.loss is not None
        return run.loss.reshape(1, 1) if alone and run.loss is not None else None

    def losses(self, copy: ModelCopy, forward: ModuleForward) -> Tensor | None:
        """The losses of some rows, each alone, where the model returns nothing but the loss."""
        each = []
        for row in range(min(self.rows, MOST_ROWS_ALONE)):
            run = copy.run(*self._replace(row=row).cut(forward, self.length))
            one = self.outputs(run, self.length, 1)
            if one is None or one.numel() != 1:
                return None
            each.append(one)
        return torch.cat(each)


def _masks(inputs: Sequence[Tensor], padded: Tensor) -> Iterator[Tensor]:
    """Tensors of 0 and 1 that are 0 exactly at the padding, at the end of rows."""
    ends = padded.flip(1).long().cumprod(1).flip(1).bool()
    if not torch.equal(ends, padded) or not bool(padded.any()):
        return
    for tensor in inputs:
        if tensor.shape == padded.shape and not tensor.is_complex():
            plain = tensor.detach()
            flags = bool(((plain == 0) | (plain == 1)).all())
            if flags and torch.equal(plain != 0, ~padded.to(plain.device)):
                yield plain != 0


MOST_ROWS_ALONE = 8
LEAST_PADDING = 4
"""Padding at least; half of it stays in the trial with less, as much as a convolution sees."""


class PaddingTrials(SequenceTrial):
    """Runs the most padded row with all of its padding, with less, and with none."""

    topic = "padding-dependence"
    first_steps = 6
    tokens_alone = False

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._batch = batch if not self._over and self.script.step < self.first_steps else None

    def ask(self, forward: ModuleForward) -> dict[str, Any] | None:
        padded = PaddedRow.of(forward)
        if padded is None:
            return None
        copy = self.copy_of(forward.module)
        batch = copy.run(*copy_inputs(forward.args, forward.kwargs))
        whole = copy.run(*padded.cut(forward, padded.length), follow=True)
        if draws_random_numbers(whole.ops):
            raise CannotCopy("the model draws random numbers in evaluation mode")
        some = padded.content + min(4, (padded.length - padded.content) // 2)
        less = copy.run(*padded.cut(forward, some), follow=True)
        every = padded.outputs(batch, padded.length, padded.rows)
        if every is None:
            every = padded.losses(copy, forward)
        one = padded.outputs(whole, padded.length, 1)
        two = padded.outputs(less, some, 1)
        if every is None or one is None or two is None or one.shape != two.shape:
            return None
        spread = float(every.double().std(0).square().mean().sqrt())
        if not spread > 0:
            return None
        more = _distance(one, two) / spread
        facts: dict[str, Any] = {
            "pad": padded.pad,
            "content": padded.content,
            "length": padded.length,
            "more_padding": more,
        }
        if more > ROUNDING_NOISE:
            facts["unused_mask"] = self._leaves_mask_out(forward, padded)
            none = copy.run(*padded.cut(forward, padded.content))
            three = padded.outputs(none, padded.content, 1)
            if three is not None and three.shape == one.shape:
                facts["no_padding"] = _distance(one, three) / spread
            op = _first_changed(less.ops, whole.ops, some, padded.length, padded.content)
            if op is not None:
                place = forward.place if facts["unused_mask"] else op.place
                facts |= {"op": op.name, "place": place}
        return facts

    def _leaves_mask_out(self, forward: ModuleForward, padded: PaddedRow) -> bool:
        """Whether the loader's batch has a mask of this padding that the model is not given."""
        batch = [tensor for _, tensor in find_tensors(getattr(self, "_batch", None))]
        tokens = padded.tokens if padded.time == 1 else padded.tokens.t()
        mask = next(_masks(batch, tokens == padded.pad), None)
        return mask is not None and next(_masks(forward.inputs, ~mask), None) is None

    def finished(self) -> None:
        super().finished()
        self._batch = None


def _distance(one: Tensor, other: Tensor) -> float:
    """The root mean square of the differences."""
    change = (one.double() - other.double()).nan_to_num(0.0, 0.0, 0.0)
    return float(change.square().mean().sqrt())


def _masked_by_product(op: TracedOp, ops: Sequence[TracedOp]) -> TracedOp:
    """The product that should have masked the scores of a softmax: 0 is a score like others."""
    if "softmax" not in op.name:
        return op
    made = [item for item in ops if item.identity in op.arguments and "mul" in item.name]
    return made[-1] if made and made[-1].place is not None else op


def _first_changed(
    less: Sequence[TracedOp], whole: Sequence[TracedOp], some: int, length: int, content: int
) -> TracedOp | None:
    """The first op whose result at a position before the padding changes with more padding."""
    for one, two in zip(less, whole, strict=False):
        if one.name != two.name:
            return None
        short, long = one.result, two.result
        if short is None or long is None or not long.is_floating_point():
            continue
        if short.ndim != long.ndim:
            return None
        for axis in range(long.ndim):
            if (short.shape[axis], long.shape[axis]) == (some, length):
                short, long = short.narrow(axis, 0, content), long.narrow(axis, 0, content)
        if short.shape != long.shape or not long.numel():
            continue
        size = float(long.double().abs().nan_to_num(0.0, 0.0, 0.0).max())
        if _distance(short, long) > ROUNDING_NOISE * size:
            return _masked_by_product(one, less)
    return None
