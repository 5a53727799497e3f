"""Gathered over ranks, the loss and its gradient are those of one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
from support.nway_ranks import COUNTS, SCORES, gathered_losses, network, samples
from support.rank_processes import run_ranks

from headway.numerics import nway_contrastive


@pytest.mark.slow
def test_two_ranks_are_one_process() -> None:
    results = run_ranks(gathered_losses, 2)
    net = network()
    for score, normalize, reduction in SCORES:
        net.zero_grad()
        scale = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
        value = nway_contrastive(
            [net(x) for x in samples()],
            score=score,
            scale=scale,
            normalize=normalize,
            reduction=reduction,
        )
        value.backward()
        assert net.weight.grad is not None
        assert scale.grad is not None
        whole = torch.cat([net.weight.grad.flatten(), scale.grad[None]])
        for values, _ in results:
            assert values[score] == pytest.approx(value.item(), rel=1e-12), score
        mean = torch.stack(
            [torch.tensor(grads[score], dtype=torch.float64) for _, grads in results]
        ).mean(0)
        assert torch.allclose(mean, whole, rtol=1e-9, atol=1e-12), score
    assert COUNTS[0] != COUNTS[1], "ranks may hold batches of different sizes"


def test_one_process_has_nothing_to_gather() -> None:
    features = samples()
    assert nway_contrastive(features, gather=True).item() == nway_contrastive(features).item()
