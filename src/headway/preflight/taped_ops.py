"""How the ops of a tape are to be treated when the tape is played again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headway.replay.op_facts import facts_of
from headway.replay.op_names import names

# They write to the running statistics they are given, and their schemas do not say so.
_SILENT_WRITERS = names(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_gather_stats "
    "batch_norm_gather_stats_with_counts"
)
_WRITTEN_SILENTLY = ("running_mean", "running_var")
# Random, and a function of their inputs all the same: run again from the same random state.
_RANDOM_FUNCTIONS = names(
    "native_dropout fused_dropout rrelu_with_noise scaled_dot_product_flash_attention "
    "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_efficient_attention "
    "scaled_dot_product_cudnn_attention flash_attention_forward efficient_attention_forward "
    "scaled_dot_product_fused_attention_overrideable"
)
# Their flat weights are not known to autograd, but are the parameters' own memory.
_READ_WEIGHTS_DIRECTLY = names("cudnn_rnn miopen_rnn")
_MEANS = names(
    "nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss "
    "multilabel_margin_loss_forward"
)
MEAN = 1
"""What `reduction` is for a mean, in the ops."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """What an op's schema and name tell."""

    name: str
    """`addmm`"""
    arguments: tuple[str, ...]
    mutated: frozenset[str]
    view: bool
    factory: bool
    """Makes a tensor that does not depend on the numbers it is given."""
    sampler: bool
    """Its result is drawn: kept as it was."""
    redrawn: bool
    """Run again from the random state it was run from."""
    reads_weights: bool
    collective: bool


_known: dict[Any, Treatment] = {}


def treatment_of(func: Any) -> Treatment:
    """The treatment of an op as it is dispatched."""
    found = _known.get(func)
    if found is None:
        found = _known[func] = _read(func)
    return found


def is_mean(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], schema: Any) -> bool:
    """Whether an op's result is a mean over everything it is given."""
    if name == "mean":
        return True
    if name not in _MEANS:
        return False
    for position, argument in enumerate(schema.arguments):
        if argument.name == "reduction":
            given = args[position] if position < len(args) else None
            return bool(
                (kwargs.get("reduction", given) if given is None else given) in (None, MEAN)
            )
    return False


def _read(func: Any) -> Treatment:
    facts = facts_of(func)
    random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
    again = facts.aten in _RANDOM_FUNCTIONS
    return Treatment(
        name=facts.aten,
        arguments=facts.arguments,
        mutated=facts.mutated
        | frozenset(_WRITTEN_SILENTLY if facts.aten in _SILENT_WRITERS else ()),
        view=facts.view,
        factory=facts.shape_only and not facts.mutated,
        sampler=random and not again,
        redrawn=random and again,
        reads_weights=facts.aten in _READ_WEIGHTS_DIRECTLY,
        collective=facts.collective,
    )
