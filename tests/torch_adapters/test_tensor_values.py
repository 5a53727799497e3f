"""The values behind tensors, read one by one and all at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headway.torch_adapters.tensor_values import (
    NAN,
    NEGATIVE,
    POSITIVE,
    nonfinite_flags,
    read_nonfinite_flags,
    read_norms,
)

INF = math.inf
CASES = [
    (torch.tensor([1.0, -2.0]), 0),
    (torch.tensor([1.0, INF]), POSITIVE),
    (torch.tensor([-INF, 0.0]), NEGATIVE),
    (torch.tensor([-INF, INF]), POSITIVE | NEGATIVE),
    (torch.tensor([math.nan, INF]), NAN),
    (torch.full((4,), 3e38), 0),
    (torch.full((4,), 60000.0, dtype=torch.float16), 0),
    (torch.tensor([1.0, INF], dtype=torch.bfloat16), POSITIVE),
    (torch.tensor([1e300, -1e300], dtype=torch.float64), 0),
    (torch.tensor([complex(1.0, -INF)]), NEGATIVE),
    (torch.tensor([1, 2]), 0),
    (torch.tensor([]), 0),
    (torch.tensor(math.nan), NAN),
]


@pytest.mark.parametrize(("tensor", "flags"), CASES, ids=str)
def test_what_is_not_finite(tensor: Tensor, flags: int) -> None:
    """A sum may overflow where no element does."""
    assert nonfinite_flags(tensor) == flags
    assert read_nonfinite_flags([tensor]) == [flags]


def test_all_at_once() -> None:
    assert read_nonfinite_flags([tensor for tensor, _ in CASES]) == [flags for _, flags in CASES]
    assert read_nonfinite_flags([]) == []


def test_norms_at_once() -> None:
    tensors = [torch.tensor([3.0, 4.0]), torch.ones(4, dtype=torch.float16), torch.zeros(2)]
    assert read_norms(tensors) == [5.0, 2.0, 0.0]
    assert read_norms([]) == []
