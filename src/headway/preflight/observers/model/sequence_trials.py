"""Trials on a copy of a model that reads tokens: whether padding changes its outputs, and whether
the order of the tokens does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer
from headway.preflight.source_lines import find_argument_line
from headway.torch_adapters.model_copy import (
    MOST_FORWARDS,
    ROUNDING_NOISE,
    CannotCopy,
    ForwardRun,
    ModelCopy,
    ModuleForward,
    TracedOp,
    copy_inputs,
    is_training_forward,
    outputs_by_position,
)
from headway.torch_adapters.nested_state import map_tensors

MOST_ELEMENTS = 1 << 20
RANDOM_OPS = ("rand", "bernoulli", "multinomial", "normal_", "uniform_", "poisson", "gumbel")


class SequenceTrial(Observer):
    """Base of the trials: keeps the forwards of the first steps until one can be asked."""

    topic: str
    first_steps: int

    def start(self) -> None:
        self._forwards: list[ModuleForward] = []
        self._over = False

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if self._over or self.script.step >= self.first_steps:
            return
        if len(self._forwards) < MOST_FORWARDS and is_training_forward(module, output):
            self._forwards.append(ModuleForward(module, args, kwargs, self.script.place()))

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        forwards, self._forwards = self._forwards, []
        for forward in forwards if not self._over else ():
            if not any(isinstance(part, nn.Embedding) for part in forward.module.modules()):
                continue
            try:
                facts = self.ask(forward)
            except CannotCopy as why:
                self._over = True
                self.evidence.unavailable(self.topic, str(why))
                return
            if facts is not None:
                self._over = True
                place = facts.pop("place", None) or forward.place
                named = {"module": self.script.path_of(forward.module), **facts}
                self.evidence.record(
                    self.topic, named if place is None else named | {"place": place}
                )
                return

    def finished(self) -> None:
        self._forwards = []

    def ask(self, forward: ModuleForward) -> dict[str, Any] | None:
        """The facts; None if this forward cannot answer."""
        raise NotImplementedError

    def copy_of(self, module: nn.Module) -> ModelCopy:
        """A copy without dropout: runs of different lengths draw different random numbers."""
        copy = ModelCopy(module, self.script.place)
        copy.model.eval()
        return copy


def find_tokens(forward: ModuleForward) -> Iterator[Tensor]:
    """The inputs that can be tokens: two axes, whole numbers, more than a mask of 0 and 1."""
    sizes = [
        part.num_embeddings for part in forward.module.modules() if isinstance(part, nn.Embedding)
    ]
    for tensor in forward.inputs:
        if tensor.ndim != 2 or tensor.is_floating_point() or tensor.dtype == torch.bool:
            continue
        if not 16 <= tensor.numel() <= MOST_ELEMENTS:
            continue
        low, high = (int(end) for end in tensor.aminmax())
        if low >= 0 and 1 < high < max(sizes, default=0):
            yield tensor.detach()


def draws_random_numbers(ops: Sequence[TracedOp]) -> bool:
    """Whether a run in evaluation mode still drops out, or samples."""
    for op in ops:
        if "dropout" in op.name and op.identity not in op.arguments:
            return True
        if any(word in op.name for word in RANDOM_OPS):
            return True
    return False


# Padding.


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
        return None


LEAST_PADDING = 4
"""Padding at least; half of it stays in the trial with less, as much as a convolution sees."""


class PaddingTrials(SequenceTrial):
    """Runs the most padded row with all of its padding, with less, and with none."""

    topic = "padding-dependence"
    first_steps = 6

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
            none = copy.run(*padded.cut(forward, padded.content))
            three = padded.outputs(none, padded.content, 1)
            if three is not None and three.shape == one.shape:
                facts["no_padding"] = _distance(one, three) / spread
            op = _first_changed(less.ops, whole.ops, some, padded.length, padded.content)
            if op is not None:
                facts |= {"op": op.name, "place": op.place}
        return facts


def _distance(one: Tensor, other: Tensor) -> float:
    """The root mean square of the differences."""
    change = (one.double() - other.double()).nan_to_num(0.0, 0.0, 0.0)
    return float(change.square().mean().sqrt())


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
            return one
    return None


# Positions.

_TABLE = re.compile(r"(^|[._])(pos|pe|wpe|posemb|pos\w*emb\w*|position\w*)([._]|$)", re.I)
_RELATIVE = re.compile(r"rel|rot|rope|alibi|freq|bias", re.I)
LEAST_VARIETY = 1e-3
"""How far the rows of a table must differ: one that begins at 0 says nothing yet."""


class PositionTable(NamedTuple):
    """A table of absolute positions in a model."""

    name: str
    owner: nn.Module
    """The module whose code uses it."""
    attribute: str

    @classmethod
    def of(cls, model: nn.Module) -> PositionTable | None:
        """The first one; None if the model has none, or one that is the same for all positions."""
        widths = {part.embedding_dim for part in model.modules() if isinstance(part, nn.Embedding)}
        modules = dict(model.named_modules())
        found = None
        for name, table in (*model.named_parameters(), *model.named_buffers()):
            if table.ndim < 2 or not table.is_floating_point() or table.shape[-1] not in widths:
                continue
            if not _TABLE.search(name) or _RELATIVE.search(name):
                continue
            rows = table.detach().reshape(-1, table.shape[-1])
            if len(rows) < 2 or float((rows - rows.mean(0)).abs().max()) < LEAST_VARIETY:
                return None
            path, _, attribute = name.rpartition(".")
            if isinstance(modules[path], nn.Embedding):
                path, _, attribute = path.rpartition(".")
            found = found or cls(name, modules[path], attribute)
        return found


class PositionTrials(SequenceTrial):
    """Runs sequences of one repeated token, or of reordered tokens."""

    topic = "position-dependence"
    first_steps = 2

    def ask(self, forward: ModuleForward) -> dict[str, Any] | None:
        table = PositionTable.of(forward.module)
        tokens = next(find_tokens(forward), None)
        if table is None or tokens is None:
            return None
        copy = self.copy_of(forward.module)
        base = copy.run(*copy_inputs(forward.args, forward.kwargs), follow=True)
        if draws_random_numbers(base.ops):
            raise CannotCopy("the model draws random numbers in evaluation mode")

        def run_with(other: Tensor) -> list[Tensor]:
            def change(tensor: Tensor) -> Tensor:
                same = tensor.shape == tokens.shape and tensor.dtype == tokens.dtype
                if same and torch.equal(tensor, tokens):
                    return other.clone()
                return tensor.detach().clone()

            changed = map_tensors([list(forward.args), dict(forward.kwargs)], change)
            return copy.run(changed[0], changed[1]).outputs

        facts = _by_repeated_token(base.outputs, tokens, run_with)
        if facts is None:
            facts = _by_reversed_order(base.outputs, tokens, run_with)
        if facts is None:
            return None
        place = find_argument_line(type(table.owner).forward, table.attribute)
        return {**facts, "table": table.name, "place": place}


def _by_repeated_token(outputs: Sequence[Tensor], tokens: Tensor, run_with: Any) -> Any:
    """One token at all positions: only the position table can make the outputs differ."""
    for at, output in enumerate(outputs):
        if output.ndim < 3 or output.shape[:2] != tokens.shape:
            continue
        other = tokens.clone()
        other[0, 0] = tokens[-1, -1] if tokens[-1, -1] != tokens[0, 0] else tokens[0, 1]
        change = (run_with(other)[at].double() - output.double()).abs().flatten(2).amax(-1)
        limit = ROUNDING_NOISE * float(change.max())
        along = [float(change[1:, 0].max()) > limit, float(change[0, 1:].max()) > limit]
        if sum(along) != 1 or limit == 0.0:
            return None  # nothing is mixed along an axis, or along both
        time = 1 if along[1] else 0
        first = tokens.narrow(time, 0, 1)
        repeated = run_with(first.expand_as(tokens).contiguous())[at].double()
        differs = (repeated - repeated.narrow(time, 0, 1)).abs().max()
        return _facts(float(differs), output, tokens.shape[time], "repeated token")
    return None


def _by_reversed_order(outputs: Sequence[Tensor], tokens: Tensor, run_with: Any) -> Any:
    """The same tokens in another order, all but the first and those at the end that repeat."""
    for at, output in enumerate(outputs):
        if output.ndim != 2 or output.shape[0] != tokens.shape[0] or output.shape[0] < 2:
            continue
        ends = (tokens == tokens[:, -1:]).flip(1).long().cumprod(1).sum(1)
        content = tokens.shape[1] - int(ends.max())
        other = tokens.clone()
        other[:, 1:content] = tokens[:, 1:content].flip(1)
        if content < 4 or torch.equal(other, tokens):
            return None
        differs = (run_with(other)[at].double() - output.double()).abs().max()
        return _facts(float(differs), output, tokens.shape[1], "reversed order")
    return None


def _facts(differs: float, output: Tensor, positions: int, trial: str) -> dict[str, Any] | None:
    spread = float(output.double().std())
    if not spread > 0:
        return None
    ratio = differs / spread
    return {
        "ignored": ratio <= ROUNDING_NOISE,
        "ratio": ratio,
        "positions": positions,
        "trial": trial,
    }
