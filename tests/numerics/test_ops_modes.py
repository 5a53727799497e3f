"""Stable ops under torch.compile, vmap, torch.func and autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import stable_op_cases as cases
from support.stable_op_cases import CASES, Case, value_and_gradients
from torch.utils._python_dispatch import TorchDispatchMode

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def spoilt(case: Case, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Ordinary rows and a row of zeros."""
    inputs = [item.detach().clone() for item in cases.regular(case, dtype)]
    for item in inputs:
        item[1] = 0.0
    return inputs


@every_case
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_to_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(case.stable, fullgraph=True, backend="aot_eager")
    for inputs in (cases.regular(case, torch.float32), spoilt(case)):
        ours, our_gradients = value_and_gradients(compiled, inputs)
        plain, plain_gradients = value_and_gradients(case.stable, inputs)
        torch.testing.assert_close(ours, plain)
        for mine, theirs in zip(our_gradients, plain_gradients, strict=True):
            torch.testing.assert_close(mine, theirs)


@every_case
def test_vmap_and_func_grad(case: Case) -> None:
    for inputs in (cases.regular(case, torch.float32), spoilt(case)):
        inputs = [item.detach() for item in inputs]
        together = case.stable(*inputs)
        torch.testing.assert_close(torch.func.vmap(case.stable)(*inputs), together)

        def total(*rows: torch.Tensor) -> torch.Tensor:
            return case.stable(*rows).sum()

        leaves = [item.clone().requires_grad_() for item in inputs]
        [expected, *_] = torch.autograd.grad(case.stable(*leaves).sum(), leaves)
        per_row = torch.func.vmap(torch.func.grad(total))(*inputs)
        torch.testing.assert_close(per_row, expected)


class Bits(TorchDispatchMode):
    """Refuses what vmap has no rule for before torch 2.13."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten.view.dtype
        return func(*args, **(kwargs or {}))


@every_case
def test_numbers_are_not_taken_for_their_bits(case: Case) -> None:
    with Bits():
        value_and_gradients(case.stable, spoilt(case))
        value_and_gradients(case.stable, [item * 1e-30 for item in spoilt(case)])


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_changes_neither_dtype_nor_safety(case: Case, dtype: torch.dtype) -> None:
    inputs = spoilt(case, dtype)
    with torch.autocast("cpu", torch.bfloat16):
        value, gradients = value_and_gradients(case.stable, inputs)
    assert value.dtype == dtype
    assert value.isfinite().all()
    assert all(g.isfinite().all() for g in gradients)
