"""`Policy(on_oom="split")` on a GPU whose memory really runs out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from headway import Guard, Policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, LENGTH, WIDTH = 512, 128, 256


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.a, self.b = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(nn.functional.gelu(self.a(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[Layer() for _ in range(6)])
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x).mean(1))


@pytest.fixture
def limit() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def train(policy: Policy | None, *, gib: float | None, autocast: bool = False) -> list[Tensor]:
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(1.0 if gib is None else gib * 2**30 / total)
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(n, LENGTH, WIDTH, generator=random), torch.randint(0, 10, (n,)))
        for n in (32, ROWS, 32, ROWS)
    ]
    guard = None if policy is None else Guard(model, optimizer, policy=policy)
    for x, labels in data if guard is None else guard(data):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            out = model(x.cuda())
        loss = nn.functional.cross_entropy(out.float(), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if guard is not None:
        assert (gib is not None) == bool([f for f in guard.findings if f.code == "HD808"])
        assert all(f.evidence["action"] == "split" for f in guard.findings if f.code == "HD808")
        guard.close()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_run_that_dies_alone_finishes_with_the_same_weights(
    limit: None, *, autocast: bool
) -> None:
    whole = train(None, gib=None, autocast=autocast)
    bits = train(Policy(on_oom="split"), gib=None, autocast=autocast)
    assert all(map(torch.equal, whole, bits))
    with pytest.raises(torch.OutOfMemoryError):
        train(None, gib=1.6, autocast=autocast)
    differences = {}
    for gib in (1.6, 0.9):
        split = train(Policy(on_oom="split"), gib=gib, autocast=autocast)
        differences[gib] = max(
            float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)
        )
        for one, other in zip(whole, split, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-3 if autocast else 1e-4)
    if "OUT" in os.environ:
        with open(os.path.join(os.environ["OUT"], "gpu_on_oom.jsonl"), "a") as file:
            file.write(json.dumps({"autocast": autocast, "largest_difference": differences}) + "\n")
