"""Trials on a copy of a model that reads tokens: whether their order changes its outputs."""

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
    ModelCopy,
    ModuleForward,
    TracedOp,
    copy_inputs,
    is_training_forward,
)
from headway.torch_adapters.nested_state import map_tensors

MOST_ELEMENTS = 1 << 20
RANDOM_OPS = ("rand", "bernoulli", "multinomial", "normal_", "uniform_", "poisson", "gumbel")


class SequenceTrial(Observer):
    """Base of the trials: keeps the forward passes of the first steps until one can be used."""

    topic: str
    first_steps: int
    tokens_alone = True
    """Whether only models with a token embedding are tried."""

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
            parts = forward.module.modules() if self.tokens_alone else ()
            if self.tokens_alone and not any(isinstance(part, nn.Embedding) for part in parts):
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


def find_steps(forward: ModuleForward) -> Tensor | None:
    """The only input of numbers with three axes: a sequence of vectors."""
    found = [t for t in forward.inputs if t.ndim == 3 and t.is_floating_point()]
    small = len(found) == 1 and min(found[0].shape[:2]) > 1 and found[0].numel() <= MOST_ELEMENTS
    return found[0].detach() if small else None


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
        parts = list(model.modules())
        widths = {part.embedding_dim for part in parts if isinstance(part, nn.Embedding)}
        if any(isinstance(part, nn.MultiheadAttention) for part in parts):
            widths |= {part.out_features for part in parts if isinstance(part, nn.Linear)}
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
    tokens_alone = False

    def ask(self, forward: ModuleForward) -> dict[str, Any] | None:
        table = PositionTable.of(forward.module)
        tokens = next(find_tokens(forward), None) if table is not None else None
        if table is not None and tokens is None:
            tokens = find_steps(forward)
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
        if facts is None and tokens.ndim == 2:
            facts = _by_reversed_order(base.outputs, tokens, run_with)
        if facts is None:
            return None
        place = find_argument_line(type(table.owner).forward, table.attribute)
        return {**facts, "table": table.name, "place": place}


def _by_repeated_token(outputs: Sequence[Tensor], tokens: Tensor, run_with: Any) -> Any:
    """One token at all positions: only the position table can make the outputs differ."""
    for at, output in enumerate(outputs):
        if output.ndim < 3 or output.shape[:2] != tokens.shape[:2]:
            continue
        other = tokens.clone()
        last = tokens[-1, -1]
        other[0, 0] = tokens[0, 1] if torch.equal(last, tokens[0, 0]) else last
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
