"""Norms of all gradients in one launch: the bits of torch, or torch itself."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn

from headway import Guard
from headway.torch_adapters.fused_norms import FEWEST, PROOFS, FusedNorms, differ

SIZES = (1, 3, 64, 2047, 2048, 65536, 65537, 200001)
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


def make_gradients(kind: torch.dtype, device: str) -> list[Tensor]:
    """Small ones, aligned and not, the last three with NaN, infinity and the largest number."""
    torch.manual_seed(0)
    found = [torch.randn(5, device=device).to(kind) for _ in range(FEWEST)]
    found += [make_uneven(size, device).to(kind) for size in SIZES]
    found += [make_uneven(size + 1, device).to(kind)[1:] for size in SIZES]
    for value in (float("nan"), float("inf"), torch.finfo(kind).max):
        found.append(torch.randn(100, device=device).to(kind))
        found[-1][7] = value
    return found


def make_uneven(size: int, device: str) -> Tensor:
    """Numbers of such different magnitude that the order in which they are added up matters."""
    return torch.randn(size, device=device) * torch.randn(size, device=device).exp2()


def deep_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(make_net(), *(nn.Linear(1, 1) for _ in range(FEWEST)))


def test_torch_measures_on_the_cpu() -> None:
    gradients = [torch.ones(2) for _ in range(2 * FEWEST)]
    norms = FusedNorms(gradients)
    assert not norms.works
    assert norms.measure(gradients) is None


def test_numbers_differ_unless_all_are_equal_or_nan() -> None:
    some = torch.tensor([1.0, float("nan"), float("inf")])
    assert not differ(some, some.clone())
    assert differ(some, torch.tensor([1.0, 2.0, float("inf")]))
    assert differ(some, torch.tensor([1.0 + 2**-20, float("nan"), float("inf")]))


def test_one_difference_ends_the_use_of_the_kernel() -> None:
    norms = FusedNorms([])
    for _ in range(PROOFS):
        norms.compared(False)
    assert norms.proven
    norms.compared(True)
    assert not norms.proven
    assert not norms.works


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernels_measure_every_kind_of_tensor_in_the_interpreter() -> None:
    """The kernels as Triton's interpreter runs them, on the CPU, in a process of its own."""
    code = (
        "import torch\n"
        "from torch_adapters import test_fused_norms as case\n"
        "for kind in (torch.float32, torch.bfloat16, torch.float16):\n"
        "    case.check_in_interpreter(kind)\n"
        "print('done')\n"
    )
    paths = [str(Path(__file__).parents[1]), *sys.path]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def check_in_interpreter(kind: torch.dtype) -> None:
    # One in five shows another order of the additions: the squares of half precision are short.
    torch.manual_seed(0)
    gradients = [make_uneven(65537, "cpu").to(kind) for _ in range(16)]
    gradients += make_gradients(kind, "cpu")
    found: Any = FusedNorms(gradients)._launch(gradients)
    expected = torch.stack([gradient.double().norm() for gradient in gradients])
    finite = expected < 1e18  # above, squares overflow, as in torch
    torch.testing.assert_close(found.each[finite].double(), expected[finite], rtol=1e-6, atol=0.0)
    assert found.each[-3].isnan()
    assert found.each[-2].isinf()
    assert found.nonfinite.tolist() == [0.0] * (len(gradients) - 3) + [1.0, 1.0, 0.0]
    if kind is not torch.float32:  # squares of half precision are exact: no rounding by a fused add
        assert not differ(found.each, torch.stack([*map(norm_in_the_order_of_torch, gradients)]))
    largest = [
        float(gradient.float().nan_to_num(nan=0.0, posinf=float("inf")).abs().max())
        for gradient in gradients
    ]
    assert found.largest.tolist() == largest


def norm_in_the_order_of_torch(gradient: Tensor) -> Tensor:
    """As the kernel behind `torch._foreach_norm` on CUDA adds up."""
    aligned = gradient.data_ptr() % (4 * gradient.element_size()) == 0
    sums = torch.zeros(512)
    for at, chunk in enumerate(gradient.float().split(65536)):
        four = torch.zeros(2048)
        for row in chunk.split(2048):
            four[: len(row)] += row * row
        whole = aligned and (len(gradient) - 65536 * at) % 4 == 0
        parts = four.reshape(512, 4).T if whole else four.reshape(4, 512)
        sums[at] = add_in_pairs(((parts[0] + parts[1]) + parts[2]) + parts[3])
    return add_in_pairs(sums).double().sqrt().float()  # correctly rounded


def add_in_pairs(sums: Tensor) -> Tensor:
    """Of 512 threads: each warp of 32 first, then the 16 warps."""
    for half in (16, 8, 4, 2, 1):
        sums = sums.reshape(16, 2, half).sum(1)
    sums = sums.flatten()
    for half in (8, 4, 2, 1):
        sums = sums.reshape(2, half).sum(0)
    return sums.squeeze()


class TestOnCuda:
    pytestmark = on_gpu

    @pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
    def test_the_bits_are_those_of_torch(self, kind: torch.dtype) -> None:
        gradients = make_gradients(kind, "cuda")
        found = FusedNorms(gradients).measure(gradients)
        assert found is not None
        dtype = {} if kind is torch.float32 else {"dtype": torch.float32}
        assert not differ(found.each, torch.stack(torch._foreach_norm(gradients, 2.0, **dtype)))
        finite = [bool(torch.isfinite(gradient).all()) for gradient in gradients]
        assert [not flag for flag in found.nonfinite.tolist()] == finite

    def test_gradients_that_are_not_dense_are_left_to_torch(self) -> None:
        gradients = [torch.randn(8, 8, device="cuda") for _ in range(FEWEST)]
        norms = FusedNorms(gradients)
        assert norms.measure([*gradients[:-1], gradients[-1].t()]) is None
        assert norms.measure([*gradients[:-1], gradients[-1].double()]) is None
        assert norms.works

    @pytest.mark.parametrize("max_norm", [None, 0.5])
    def test_a_guard_relies_on_it_after_a_proof_without_a_wait(
        self, max_norm: float | None
    ) -> None:
        nets = [deep_net().cuda() for _ in range(2)]
        optimizers = [torch.optim.AdamW(n.parameters(), lr=1e-2, fused=True) for n in nets]
        data = [(x.cuda(), y.cuda()) for x, y in batches(30)]
        guards = [Guard(n, o, max_norm=max_norm) for n, o in zip(nets, optimizers, strict=True)]
        measures = [_measure(guard) for guard in guards]
        measures[1].fused_norms.give_up("compared with the other")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in data:
                for net, optimizer in zip(nets, optimizers, strict=True):
                    squared_error(net, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert measures[0].fused_norms.proven
        for guard in guards:
            guard.close()
        assert_same(*(state_of(n, o) for n, o in zip(nets, optimizers, strict=True)), "kernel")


def _measure(guard: Guard) -> Any:
    session: Any = guard._session
    (step,) = session.optimizer_steps.values()
    return step.measure
