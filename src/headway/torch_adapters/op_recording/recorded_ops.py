"""The ops of a recording: what they read, write and draw, and how each is to be run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.torch_adapters.compat import base_tensor, tensor_version
from headway.torch_adapters.op_schema import name_set, read_schema
from headway.torch_adapters.tensor_values import storage_address

# What a recording contains: ops to be run again, their arguments, and the memory behind them.


@dataclass(frozen=True, slots=True)
class RecordedView:
    """A tensor on memory that a recorded op made."""

    number: int
    dtype: torch.dtype
    device: torch.device
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True, slots=True)
class ParameterRef:
    """A tensor on memory of a parameter, read when the recording is replayed."""

    tensor: Tensor


@dataclass(slots=True)
class ConstantRef:
    """A constant."""

    tensor: Tensor
    version: int | None
    """None for a copy of ours, which does not change."""

    @property
    def changed(self) -> bool:
        """Whether it was written to since."""
        return self.version is not None and read_version(self.tensor) != self.version


@dataclass(frozen=True, slots=True)
class InitialMemory:
    """Memory made outside of the recording, as it was before a recorded op wrote to it."""

    number: int
    content: Tensor
    """Its bytes."""


@dataclass(slots=True)
class RecordedOp:
    """One op to be run again."""

    func: Any
    args: Any
    kwargs: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    makes: tuple[tuple[int, int, int], ...] = ()
    """(position among the results, number, bytes) of the memory it makes."""
    random: Any = None
    """The random state to run it from."""
    mean: bool = False
    """Its result is a mean over everything it was given."""
    size: int = 0
    """How many numbers its first result has."""
    older: bool = False
    """It depends on a graph made before the recording began."""
    drawn: list[tuple[int, Tensor]] = field(default_factory=list)
    """(number, bytes) of memory it filled with drawn numbers."""


@dataclass(slots=True)
class RecordedRoot:
    """A tensor at which a backward pass began."""

    view: RecordedView
    value: float
    end: int
    """How many entries the tape had then."""


def memory_key(tensor: Tensor) -> int:
    """By what the memory of a tensor is known."""
    return storage_address(tensor)


def memory_size(tensor: Tensor) -> int:
    """Bytes of the storage behind a tensor."""
    return int(tensor.untyped_storage().nbytes())


def copy_memory(tensor: Tensor) -> Tensor:
    """A copy of the whole storage behind a tensor."""
    storage = tensor.untyped_storage()
    everything = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return everything.set_(storage, 0, (storage.nbytes(),), (1,)).clone()


def describe_view(tensor: Tensor, number: int) -> RecordedView:
    """A tensor on the memory of that number."""
    return RecordedView(
        number,
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def read_version(tensor: Tensor) -> int | None:
    """Rises whenever it is written to; None where torch does not count."""
    return None if tensor.is_inference() else tensor_version(tensor)


# How the ops of a tape are to be treated when the tape is played again.

# They write to the running statistics they are given, and their schemas do not say so.
_SILENT_WRITERS = name_set(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_gather_stats "
    "batch_norm_gather_stats_with_counts"
)
_WRITTEN_SILENTLY = ("running_mean", "running_var")
# Random, and a function of their inputs all the same: run again from the same random state.
_RANDOM_FUNCTIONS = name_set(
    "native_dropout fused_dropout rrelu_with_noise scaled_dot_product_flash_attention "
    "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_efficient_attention "
    "scaled_dot_product_cudnn_attention flash_attention_forward efficient_attention_forward "
    "scaled_dot_product_fused_attention_overrideable"
)
# Their flat weights are not known to autograd, but are the parameters' own memory.
_READ_WEIGHTS_DIRECTLY = name_set("cudnn_rnn miopen_rnn")
_MEANS = name_set(
    "nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss "
    "multilabel_margin_loss_forward"
)
MEAN = 1
"""What `reduction` is for a mean, in the ops."""


@dataclass(frozen=True, slots=True)
class OpTreatment:
    """The properties of an op that its schema and name imply."""

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


_treatments: dict[int, tuple[Any, OpTreatment]] = {}
"""By the identity of an op, with the op itself: its own hash is a Python function."""


def find_treatment(func: Any) -> OpTreatment:
    """The treatment of an op as it is dispatched."""
    found = _treatments.get(id(func))
    if found is None:
        found = _treatments[id(func)] = (func, _read_treatment(func))
    return found[1]


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


def _read_treatment(func: Any) -> OpTreatment:
    facts = read_schema(func)
    random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
    again = facts.aten in _RANDOM_FUNCTIONS
    return OpTreatment(
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


def is_on_leaf(tensor: Tensor) -> bool:
    if tensor.is_leaf:
        return True
    base = base_tensor(tensor)
    return base is not None and base.is_leaf


def read_random_state(tensors: Sequence[Tensor]) -> list[tuple[torch.device | None, Tensor]]:
    states: list[tuple[torch.device | None, Tensor]] = [(None, torch.get_rng_state())]
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    states.extend((device, torch.cuda.get_rng_state(device)) for device in devices)
    return states
