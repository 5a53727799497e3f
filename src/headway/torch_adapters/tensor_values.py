"""The numbers behind tensors: their local part and storage, and the non-finite values in weights,
buffers, optimizer state and batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.torch_adapters.module_stack import user_path
from headway.torch_adapters.private_parts import private_attribute
from headway.torch_adapters.process_groups.sharded_tensors import local_part, local_values

# Which non-finite numbers a tensor holds, read at once.

NAN, POSITIVE, NEGATIVE = 1, 2, 4
INFINITE = POSITIVE | NEGATIVE
"""Flags: there is a NaN; or there is none, but a +inf, a −inf. Next to a NaN infinities do not
matter: they are not followed."""

_PLAIN = (Tensor, nn.Parameter)


def plain_tensor(tensor: Tensor) -> Tensor | None:
    """The ordinary tensor with the numbers: of a DTensor its local part, of a sparse one its
    values; None for a kind that cannot be looked into."""
    if type(tensor) not in _PLAIN:
        local = getattr(tensor, "_local_tensor", None)
        if isinstance(local, Tensor):
            return plain_tensor(local)
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
    if tensor.layout is torch.strided:
        return None if tensor.device.type == "meta" else tensor
    return sparse_values(tensor) if tensor.layout is torch.sparse_coo else None


def sparse_values(tensor: Tensor) -> Tensor:
    """The values of a sparse tensor as they are stored, duplicates included."""
    if tensor.layout is not torch.sparse_coo:
        return tensor.values()
    stored: Tensor = tensor._values() if hasattr(tensor, "_values") else tensor.coalesce().values()
    return stored


def nonfinite_flags(tensor: Tensor) -> int:
    """What is non-finite in a plain tensor; 0 where nothing is."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return 0
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return 0  # reading would break the capture
    numbers = as_real(tensor)
    # One bad element makes the sum bad, and no kernel is cheaper; a sum may overflow by itself,
    # though.
    if math.isfinite(_read(numbers.sum())):
        return 0
    low, high = torch.aminmax(numbers)
    return _flags_of_ends(_read(low), _read(high))


def read_nonfinite_flags(tensors: Sequence[Tensor]) -> list[int]:
    """The same for each of these; the host waits for each device once."""
    found = [0] * len(tensors)
    ends: dict[torch.device, list[tuple[int, Tensor, Tensor]]] = {}
    for at, tensor in enumerate(tensors):
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
            low, high = torch.aminmax(as_real(tensor))
            ends.setdefault(tensor.device, []).append((at, low.double(), high.double()))
    for of_device in ends.values():
        lows = torch.stack([low for _, low, _ in of_device])
        highs = torch.stack([high for _, _, high in of_device])
        for (at, _, _), low, high in zip(of_device, lows.tolist(), highs.tolist(), strict=True):
            found[at] = _flags_of_ends(low, high)
    return found


def read_norms(tensors: Sequence[Tensor]) -> list[float]:
    """The norm of each in single precision; the host waits for each device once."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    if len({norm.device for norm in norms}) <= 1:
        return torch.stack(norms).tolist() if norms else []
    return [_read(norm) for norm in norms]


def _flags_of_ends(low: float, high: float) -> int:
    if math.isnan(low) or math.isnan(high):
        return NAN
    return (POSITIVE if high == math.inf else 0) | (NEGATIVE if low == -math.inf else 0)


_FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))


def sums_to_finite(tensor: Tensor) -> bool:
    """Whether the sum is finite, and so every element. Huge values may overflow: False proves
    nothing."""
    if tensor.dtype not in _FLOATS or type(tensor) not in _PLAIN or not tensor.is_cpu:
        numbers = plain_tensor(tensor)
        return numbers is None or nonfinite_flags(numbers) == 0
    if tensor.layout is not torch.strided:
        return nonfinite_flags(sparse_values(tensor)) == 0
    return math.isfinite(tensor.sum(dtype=torch.float32).item())


def as_real(tensor: Tensor) -> Tensor:
    """The same numbers in a dtype that every kernel knows."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def _read(scalar: Any) -> float:
    return float(scalar.item())


_storage_identity = private_attribute(
    "torch.UntypedStorage._cdata",
    lambda storage: storage.data_ptr(),
    without="storages are distinguished by their address: two that are empty count as one",
)


def storage_address(tensor: Tensor) -> int:
    """What tensors that share memory have in common."""
    return int(_storage_identity(tensor.untyped_storage()))


def storage_span(tensor: Tensor) -> tuple[int, int]:
    """The range of bytes of its storage that a tensor spans."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((length - 1) * step for length, step in steps if length > 0)
    return first, first + (int(reach) + 1) * size


def fills_its_span(tensor: Tensor) -> bool:
    """Whether a tensor leaves no gaps in what it spans."""
    first, last = storage_span(tensor)
    return tensor.numel() * tensor.element_size() >= last - first


def count_nonfinite(tensor: Tensor) -> tuple[int, int]:
    """(NaN elements, infinite elements). Waits for the device: only for steps known to be bad."""
    values = dense_values(tensor)
    if not (values.is_floating_point() or values.is_complex()):
        return 0, 0
    return int(torch.isnan(values).sum()), int(torch.isinf(values).sum())


def count_all_nonfinite(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """(tensors that hold one, elements) that are not finite. Waits for the device."""
    counts = [sum(count_nonfinite(tensor)) for tensor in tensors]
    return sum(1 for count in counts if count), sum(counts)


def dense_values(tensor: Tensor) -> Tensor:
    tensor = local_values(tensor)
    return tensor.coalesce().values() if tensor.is_sparse else tensor


# Looking for non-finite numbers in the state of a run, once something went wrong.

# Reading the verdict makes the host wait for the device, so a scan belongs to an incident, never
# to a step.

MAX_NAMED = 20
"""Bad rows or features listed per tensor; the counts are always whole."""
MAX_DEPTH = 6
"""Nesting depth of a batch that is searched; a deeper one is some object graph."""


@dataclass(frozen=True, slots=True)
class BadTensor:
    """A tensor with non-finite elements."""

    name: str
    role: str
    tensor: Tensor
    nan: int
    inf: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stats(self) -> dict[str, float]:
        values = _values(self.tensor)
        norm = float(torch.linalg.vector_norm(values[torch.isfinite(values)].abs().double()))
        return {"nan": self.nan, "inf": self.inf, "numel": self.tensor.numel(), "norm": norm}


def scan_state(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], names: Mapping[int, str]
) -> Iterator[BadTensor]:
    """Weights, buffers and moments that hold a non-finite number. `names` is by tensor identity."""
    yield from _find_bad("weight", _weights(models, optimizers, names))
    yield from _find_bad("buffer", _buffers(models))
    yield from _find_bad("moment", _moments(optimizers, names))


def scan_batch(batch: Any, indices: Sequence[Any] = (), name: str = "batch") -> Iterator[BadTensor]:
    """Tensors of a batch that hold a non-finite number, with the samples they are in.

    `indices` are those of its samples in the data set, where they are known.
    """
    for path, tensor in _tensors_in(batch, name, MAX_DEPTH):
        for bad in _find_bad("input", [(path, tensor)]):
            facts = _locate_nonfinite(tensor)
            if "rows" in facts and len(indices) == tensor.shape[0]:
                facts["indices"] = [indices[row] for row in facts["rows"]]
            yield BadTensor(path, "input", tensor, bad.nan, bad.inf, facts)


def batch_size(batch: Any) -> int | None:
    """How many samples a batch holds: the first dimension of its first tensor."""
    return row_count(attached_tensors(batch))


TOKEN_KEYS = ("input_ids", "tokens", "input_tokens")
_TOKEN_DTYPES = (torch.int64, torch.int32)


def token_count(batch: Any) -> int:
    """How many tokens a batch of token ids holds, padding included; 0 for other data.

    Token ids are known by their name, or by targets of the same shape and dtype.
    """
    ids: Any = None
    if isinstance(batch, Mapping):
        ids = next((batch[name] for name in TOKEN_KEYS if name in batch), None)
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        ids, targets = batch
        alike = isinstance(ids, Tensor) and isinstance(targets, Tensor)
        if not (alike and ids.dtype == targets.dtype and ids.shape == targets.shape):
            return 0
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.dtype not in _TOKEN_DTYPES:
        return 0
    return ids.numel()


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch, however it is nested."""
    return [tensor.detach() for tensor in attached_tensors(batch)]


def attached_tensors(batch: Any) -> list[Tensor]:
    """The same, the very objects that the batch holds: for their versions, at every step."""
    found: list[Tensor] = []
    _collect(batch, MAX_DEPTH, found)
    return found


def row_count(tensors: Sequence[Tensor]) -> int | None:
    """The first dimension of the first that has one."""
    for tensor in tensors:
        if tensor.ndim:
            return int(tensor.shape[0])
    return None


def is_on_host(batch: Any) -> bool:
    """Whether a batch has tensors, all of them on the CPU."""
    devices = {tensor.device.type for tensor in batch_tensors(batch)}
    return devices == {"cpu"}


def named_batch_tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch with their names: `batch[0]`, `batch['image']`."""
    return _tensors_in(batch, "batch", MAX_DEPTH)


def _buffers(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for model in models:
        for path, buffer in model.named_buffers():
            yield user_path(path), buffer


def _weights(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], names: Mapping[int, str]
) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    for parameters in [*(model.parameters() for model in models), *groups]:
        for parameter in parameters:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield names.get(id(parameter), "a parameter without a name"), parameter.detach()


def _moments(
    optimizers: Sequence[Optimizer], names: Mapping[int, str]
) -> Iterator[tuple[str, Tensor]]:
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            owner = names.get(id(parameter), "a parameter without a name")
            if isinstance(state, dict):
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield f"{owner}.{key}", value


def _find_bad(role: str, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[BadTensor]:
    # Each rank scans its own shard of a sharded tensor, without communication.
    parts = ((name, local_part(tensor)) for name, tensor in tensors)
    named = [(name, tensor) for name, tensor in parts if _can_be_bad(tensor)]
    if not named:
        return
    # One flag per tensor, read together: a single wait for the device instead of hundreds.
    device = named[0][1].device
    flags = [(~torch.isfinite(_values(tensor)).all()).to(device) for _, tensor in named]
    for (name, tensor), bad in zip(named, torch.stack(flags).tolist(), strict=True):
        if bad:
            yield BadTensor(name, role, tensor, *count_nonfinite(tensor))


def _can_be_bad(tensor: Tensor) -> bool:
    if tensor.numel() == 0 or tensor.is_meta:  # a meta tensor holds no numbers
        return False
    return tensor.is_floating_point() or tensor.is_complex()


def _values(tensor: Tensor) -> Tensor:
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _tensors_in(value: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif depth == 0:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors_in(item, f"{name}[{key!r}]", depth - 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors_in(item, f"{name}[{index}]", depth - 1)
    elif hasattr(value, "__dataclass_fields__"):
        for key in value.__dataclass_fields__:
            yield from _tensors_in(getattr(value, key), f"{name}.{key}", depth - 1)


def _collect(value: Any, depth: int, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif depth == 0:
        return
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, Tensor):
                found.append(item)
            else:
                _collect(item, depth - 1, found)
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, depth - 1, found)
    elif hasattr(value, "__dataclass_fields__"):
        for key in value.__dataclass_fields__:
            _collect(getattr(value, key), depth - 1, found)


def _locate_nonfinite(tensor: Tensor) -> dict[str, Any]:
    """The samples (first dimension) and features (the rest) that hold something non-finite."""
    if tensor.ndim == 0 or tensor.is_sparse:
        return {}
    rows = ~torch.isfinite(tensor.reshape(tensor.shape[0], -1))
    per_row, per_feature = rows.any(dim=1), rows.any(dim=0)
    return {
        "rows": per_row.nonzero().flatten()[:MAX_NAMED].tolist(),
        "bad_rows": int(per_row.sum()),
        "features": per_feature.nonzero().flatten()[:MAX_NAMED].tolist(),
        "bad_features": int(per_feature.sum()),
    }
