"""The token loss: micro-batches and ranks give the gradient of the one big batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.rank_processes import run_ranks
from support.token_batches import batches, big_batch_gradient, rank_gradient

from headway import numerics


def test_alone_it_is_cross_entropy_over_the_tokens_that_count() -> None:
    logits, labels = batches(1, 1)[0][0]
    ours = numerics.masked_token_loss(logits, labels)
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(ours, plain)


def test_micro_batches_add_up_to_the_big_batch() -> None:
    torch.testing.assert_close(rank_gradient(0, 1, 4, "averaged"), big_batch_gradient(1, 4))


@pytest.mark.parametrize("how", ["averaged", "summed"])
def test_two_ranks_with_micro_batches_are_the_big_batch(how: str) -> None:
    gradients = run_ranks(rank_gradient, 2, 2, 3, how)
    for gradient in gradients:
        torch.testing.assert_close(gradient, big_batch_gradient(2, 3))


def test_a_mean_of_means_is_not_the_big_batch() -> None:
    """What the loss is for: these batches differ in length."""
    naive = rank_gradient(0, 1, 4, "means")
    assert not torch.allclose(naive, big_batch_gradient(1, 4), rtol=0.05)


def test_nothing_to_learn_is_zero() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = numerics.masked_token_loss(logits, torch.full((2, 3), -100))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, logits)[0].any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"labels": torch.zeros(2, 4).long()}, "then the classes"),
        ({"gradients": "lost"}, "'averaged' or 'summed'"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], words: str) -> None:
    arguments = {"labels": torch.zeros(2, 3).long(), **arguments}
    with pytest.raises(ValueError, match=words):
        numerics.masked_token_loss(torch.zeros(2, 3, 5), **arguments)
    with pytest.raises(ValueError, match="no labels"):
        numerics.count_tokens([])
