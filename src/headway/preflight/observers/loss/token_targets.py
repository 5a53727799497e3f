"""How the targets of a language model relate to its input tokens.

The targets are aligned with the tokens: those of position t should be the token at t + 1. The same
alignment shows whether the token that ends the rows is ever a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.token_weights import EndToken, ignore_masked, node_of_losses
from headway.preflight.source_lines import find_batch_functions, find_line, find_shifting_line
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.model_copy import (
    MOST_FORWARDS,
    ROUNDING_NOISE,
    CannotCopy,
    ModelCopy,
    ModuleForward,
    copy_inputs,
    is_training_forward,
    outputs_by_position,
)
from headway.torch_adapters.nested_state import map_tensors

SHIFT_STEPS = 3
END_STEPS = 12
"""The first steps, whose targets are aligned; the end token needs batches of several lengths."""
MOST_CALLS = 8
MOST_ELEMENTS = 1 << 22
FEWEST = 8
"""Minimum number of targets that must be known."""
AGREES, DIFFERS = 0.99, 0.6
"""Share of targets that equal the token at a shift, and at every other shift."""
SHIFTS = (0, 1, 2)
PAD_IS_END = r"pad_token(_id)?\s*=[^=].*\beos_token"
MASKS_PADDING = (
    r"\[[^\]]*==[^\]]*pad[^\]]*\]\s*=\s*(-100|0)",
    PAD_IS_END,
    r"\[[^\]]*==[^\]]*\]\s*=\s*-100",
    r"(masked_fill|where)\(.*-100",
    r"ignore_index\s*=",
)
"""Lines that exclude padding from the targets, the most telling first."""


class TargetCall(NamedTuple):
    """One call of a loss function over class ids."""

    target: Tensor
    ignored: int
    function: str
    place: dict[str, Any] | None
    own: bool
    """Whether the script itself called it."""
    node: Any = None
    """What made the losses of the single tokens, where they are not reduced."""

    def without_masked(self, root: Tensor) -> TargetCall:
        return self._replace(target=ignore_masked(self.target, self.node, root, self.ignored))


class Alignment(NamedTuple):
    """Targets, and the tokens they refer to."""

    call: TargetCall
    tokens: Tensor
    """(rows, positions)."""
    targets: Tensor
    """(rows, positions): a row may be shorter than its tokens."""
    known: Tensor
    """Where a target is not ignored."""
    time: int
    """The axis of time in the input."""

    def share_at(self, shift: int) -> float:
        """Share of the known targets that equal the token `shift` places further on."""
        width = min(self.targets.shape[1], self.tokens.shape[1] - shift)
        known = self.known[:, :width]
        count = int(known.sum())
        if count < FEWEST:
            return 0.0
        equal = self.targets[:, :width] == self.tokens[:, shift : shift + width]
        return int((equal & known).sum()) / count

    def find_shift(self) -> int | None:
        """The only shift at which targets and tokens agree."""
        shares = {shift: self.share_at(shift) for shift in SHIFTS}
        best = max(shares, key=lambda shift: shares[shift])
        others = [share for shift, share in shares.items() if shift != best]
        return best if shares[best] >= AGREES and max(others) <= DIFFERS else None


class TokenTargets(Observer):
    """Aligns targets with input tokens in the first steps."""

    functions = find_aliases("cross_entropy", "nll_loss", "gather", "embedding")
    calls_before = END_STEPS

    def start(self) -> None:
        self._embedded: list[Tensor] = []
        """Ids that were looked up in a table: labels that the model also gets are not."""
        self._forwards: list[ModuleForward] = []
        self._calls: list[TargetCall] = []
        self._shift_reported = False
        self._making: tuple[Any, ...] = ()
        self._end: EndToken | None = None
        self._end_over = False

    @property
    def _listens(self) -> bool:
        last = SHIFT_STEPS if self._end_over else END_STEPS
        return self.script.step < last

    def function_ended(self, call: TorchCall) -> None:
        if not self._listens or len(self._calls) >= MOST_CALLS or not torch.is_grad_enabled():
            return
        if call.name == "embedding":
            ids = call.argument(0, "input")
            if isinstance(ids, Tensor) and ids.numel() >= FEWEST:
                self._embedded = [*self._embedded[1 - MOST_CALLS :], ids.detach()]
            return
        gathers = call.name == "gather"
        target = call.argument(2, "index") if gathers else call.argument(1, "target")
        if isinstance(target, Tensor) and target.dtype == torch.long and target.numel() >= FEWEST:
            ignored = call.argument(4, "ignore_index", -100)
            self._calls.append(
                TargetCall(
                    target.detach(),
                    ignored if isinstance(ignored, int) and not gathers else -100,
                    call.name,
                    self.script.place(),
                    self.script.users_own_call(),
                    None if gathers else node_of_losses(call.result, target),
                )
            )

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if not self._listens or len(self._forwards) >= MOST_FORWARDS:
            return
        if is_training_forward(module, output):
            self._forwards.append(ModuleForward(module, args, kwargs, self.script.place()))

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        forwards, self._forwards = self._forwards, []
        calls, self._calls = self._calls, []
        embedded, self._embedded = self._embedded, []
        if len(roots) == 1:
            calls = [call.without_masked(roots[0]) for call in calls]
        for forward in forwards if calls else ():
            aligned = [item for call in calls for item in _align(forward, call, embedded)]
            shifts = [item.find_shift() for item in aligned]
            # With several heads (multi-token prediction) some may look further ahead.
            if 1 in shifts:
                self._follow_end(forward, aligned[shifts.index(1)])
                return
            for alignment, shift in zip(aligned, shifts, strict=True):
                if shift is not None and not self._shift_reported:
                    self._report_shift(forward, alignment, shift)
                    return

    def step_ended(self, optimizer: Any) -> None:
        if self._end is not None and self.script.step >= END_STEPS - 1:
            self._report_end()

    def finished(self) -> None:
        self._forwards, self._calls, self._embedded = [], [], []
        self._report_end()

    # How far ahead the targets are.

    def _report_shift(self, forward: ModuleForward, alignment: Alignment, shift: int) -> None:
        if self.script.step >= SHIFT_STEPS:
            return
        self._shift_reported = True
        copies = False
        if shift == 0:
            if alignment.call.function == "gather":
                return
            try:
                copies = self._is_causal_copy(forward, alignment)
            except CannotCopy as why:
                self.evidence.unavailable("token-targets", str(why))
                return
        self.evidence.record(
            "token-targets",
            {
                "module": self.script.path_of(forward.module),
                "function": alignment.call.function,
                "shift": shift,
                "copies": copies,
                "share": alignment.share_at(shift),
                "targets": int(alignment.known.sum()),
                "place": self._shifted_at(alignment.call) or alignment.call.place or forward.place,
            },
        )

    def _shifted_at(self, call: TargetCall) -> dict[str, Any] | None:
        """The line of the loader that shifts, where a library's model computes the loss."""
        if call.own:
            return None
        return next(filter(None, map(find_shifting_line, self._making)), None)

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._making = find_batch_functions(loader)

    def _is_causal_copy(self, forward: ModuleForward, alignment: Alignment) -> bool:
        """Whether each output sees its own token and earlier ones, but none after it.

        Then a target that is the own token can be copied. An autoencoder sees all tokens, a model
        that shifts its input itself does not see its own.
        """
        rows, length = alignment.tokens.shape
        middle = length // 2
        other = alignment.tokens.clone()
        other[:, middle] = alignment.tokens[:, (middle + 1) % length]
        if torch.equal(other, alignment.tokens):
            return False
        given = alignment.tokens if alignment.time == 1 else alignment.tokens.t()

        def change(tensor: Tensor) -> Tensor:
            same = (
                tensor.shape == given.shape
                and tensor.dtype == given.dtype
                and torch.equal(tensor, given)
            )
            plain = other if alignment.time == 1 else other.t().contiguous()
            return plain.clone() if same else tensor.detach().clone()

        copy = ModelCopy(forward.module, self.script.place)
        base = copy.run(*copy_inputs(forward.args, forward.kwargs))
        changed = map_tensors([list(forward.args), dict(forward.kwargs)], change)
        again = copy.run(changed[0], changed[1])
        for one, two in zip(base.outputs, again.outputs, strict=False):
            before = outputs_by_position(one, rows, length, alignment.time)
            after = outputs_by_position(two, rows, length, alignment.time)
            if before is None or after is None:
                continue
            change_at = (after.double() - before.double()).abs().amax(-1).amax(0)
            limit = ROUNDING_NOISE * float(change_at.max())
            moved = change_at > limit
            return bool(moved[middle] and moved[middle + 1 :].any() and not moved[:middle].any())
        return False

    # Whether the token that ends the rows is a target.

    def _follow_end(self, forward: ModuleForward, alignment: Alignment) -> None:
        if self._end_over:
            return
        tokens = alignment.tokens
        end = int(tokens[:, -1].mode().values)
        known = self._end
        if known is None:
            place = alignment.call.place or forward.place
            for pattern in MASKS_PADDING:
                found = find_line(self.script, pattern)
                if found is not None:
                    place = found
                    break
            known = EndToken(end, alignment.call.ignored, place, self.script.step)
            self._end = known
        if end != known.token or bool(((alignment.targets == end) & alignment.known).any()):
            # Rows end in several ways, or the end is a target: nothing more to learn.
            known.learned = True
            self._end_over = True
            return
        mask = _find_mask(forward, alignment)
        known.add(tokens, alignment.targets, alignment.known, mask)

    def _report_end(self) -> None:
        end, self._end = self._end, None
        self._end_over = True
        if end is None or not end.rows:
            return
        by_source = not end.masked_rows and find_line(self.script, PAD_IS_END) is not None
        self.evidence.record("end-token", end.facts() | {"pad_is_end": by_source})


def _align(forward: ModuleForward, call: TargetCall, embedded: Sequence[Tensor]) -> list[Alignment]:
    found = []
    for tokens in forward.inputs:
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            continue
        if not FEWEST <= tokens.numel() <= MOST_ELEMENTS:
            continue
        if not any(_holds_same(tokens, ids) for ids in embedded):
            continue
        for time in (1, 0):
            rows, length = tokens.shape if time == 1 else reversed(tokens.shape)
            widths = [
                width
                for width in (length, length - 1, length - 2)
                if call.target.numel() == rows * width
            ]
            if length < 5 or not widths:
                continue
            shape = (rows, widths[0]) if time == 1 else (widths[0], rows)
            target = call.target.to(tokens.device).reshape(shape)
            plain = tokens.detach()
            if time == 0:
                target, plain = target.t(), plain.t()
            known = (target != call.ignored) & (target >= 0)
            found.append(Alignment(call, plain, target, known, time))
    return found


def _holds_same(tokens: Tensor, ids: Tensor) -> bool:
    if tokens.data_ptr() == ids.data_ptr() and tokens.numel() == ids.numel():
        return True
    return tokens.shape == ids.shape and bool((tokens == ids).all())


def _find_mask(forward: ModuleForward, alignment: Alignment) -> Tensor | None:
    """Which tokens are attended, from a mask among the inputs as large as the tokens.

    A `key_padding_mask` is true at the padding instead: tokens that are targets tell which it is.
    """
    shape = alignment.tokens.shape if alignment.time == 1 else alignment.tokens.t().shape
    for tensor in forward.inputs:
        if tensor.shape != shape or tensor.is_complex():
            continue
        plain = tensor.detach() if alignment.time == 1 else tensor.detach().t()
        if torch.equal(plain.to(alignment.tokens.dtype), alignment.tokens):
            continue
        if bool(((plain == 0) | (plain == 1)).all()) and bool((plain == 0).any()):
            mask = plain.to(torch.bool)
            known = alignment.known
            at_targets = mask[:, 1 : 1 + known.shape[1]]
            learned = known[:, : at_targets.shape[1]]
            attended = int((at_targets & learned).sum())
            return mask if 2 * attended >= int(learned.sum()) else ~mask
    return None
