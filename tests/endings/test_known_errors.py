"""Common exceptions of torch, raised by torch itself, get the remedy that fits."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.checks.known_errors import known_remedy


def second_backward() -> Any:
    x = torch.ones(2, requires_grad=True)
    y = (x * x).sum()
    y.backward()
    y.backward()


def in_place() -> Any:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y += 1
    y.sum().backward()


def wrapped_keys() -> Any:
    state = {f"module.{name}": value for name, value in nn.Linear(2, 2).state_dict().items()}
    nn.Linear(2, 2).load_state_dict(state)


def deep() -> Any:
    return deep()


RAISED: list[tuple[Callable[[], Any], str]] = [
    (second_backward, "state.detach()"),
    (lambda: torch.ones(2).sum().backward(), "no graph"),
    (lambda: nn.Linear(2, 2)(torch.ones(3, 2)).backward(), "`loss.mean()`"),
    (in_place, "in-place operation"),
    (lambda: nn.Linear(2, 2).weight.add_(1), "torch.no_grad()"),
    (lambda: nn.Linear(784, 10)(torch.ones(32, 400)), "`in_features=400`"),
    (lambda: nn.Conv2d(3, 8, 3)(torch.ones(2, 1, 8, 8)), "expects 3 channels and gets 1"),
    (lambda: nn.Linear(2, 2)(torch.ones(2, 2, dtype=torch.float64)), "`x = x.float()`"),
    (lambda: F.cross_entropy(torch.ones(2, 3), torch.ones(2, dtype=torch.int32)), "target.long()"),
    (
        lambda: F.binary_cross_entropy(torch.rand(2), torch.ones(2).long()),
        "target.float()",
    ),
    (lambda: nn.Embedding(10, 2)(torch.tensor([10])), "num_embeddings"),
    (lambda: F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 3])), "Label 3 has no output"),
    (lambda: nn.BatchNorm1d(4)(torch.ones(1, 4)), "drop_last=True"),
    (lambda: F.cross_entropy(torch.ones(5, 3), torch.ones(4).long()), "numbers of rows"),
    (
        lambda: F.binary_cross_entropy_with_logits(torch.ones(()), torch.ones(1)),
        "`squeeze(1)`",
    ),
    (
        lambda: F.binary_cross_entropy_with_logits(torch.ones(4, 1), torch.ones(4)),
        "`target.unsqueeze(1)`",
    ),
    (lambda: F.cross_entropy(torch.ones(4, 3), torch.ones(4, 1).long()), "target.squeeze(1)"),
    (lambda: torch.ones(10).view(4, 4), "-1 for the batch axis"),
    (wrapped_keys, "begin with `module.`"),
    (lambda: nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict()), "settings of the"),
    (deep, "as a loop"),
    (lambda: torch.save(lambda: 0, io.BytesIO()), "cannot be pickled"),
]


@pytest.mark.parametrize(("work", "words"), RAISED, ids=[words for _, words in RAISED])
def test_a_common_error_has_a_remedy(work: Callable[[], Any], words: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the texts are torch's own
        work()
    assert words in (known_remedy(str(raised.value)) or f"nothing for: {raised.value}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_call_for_a_gpu() -> None:
    with pytest.raises((AssertionError, RuntimeError)) as raised:
        torch.cuda.synchronize()
    assert "torch.cuda.is_available()" in (known_remedy(str(raised.value)) or "")


@pytest.mark.parametrize(
    "text", [None, "", "'grad_clip'", "list index out of range", "division by zero", "weights off"]
)
def test_an_unknown_error_has_none(text: str | None) -> None:
    assert known_remedy(text) is None
