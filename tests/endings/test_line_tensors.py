"""The tensors of the line that raised are named, from the frame of the exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from headway.guard.endings.failure import Failure, FailureMoment, read_stack


def tensors_at(work: Callable[[], Any]) -> dict[str, tuple[list[int], str]]:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - torch's own texts
        work()
    error = raised.value
    facts = Failure(error, FailureMoment(), None, read_stack(error)).facts()
    return {item["name"]: (item["shape"], item["dtype"]) for item in facts["tensors"]}


def test_the_variables_of_the_line() -> None:
    def work() -> None:
        left, right, other = torch.ones(2, 3), torch.ones(4, 5).double(), torch.ones(7)
        assert other is not None
        left @ right  # comments name nothing: other

    assert tensors_at(work) == {"left": ([2, 3], "float32"), "right": ([4, 5], "float64")}


class Offset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("start", torch.zeros(5))
        self.scale = torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.start * self.scale


def test_buffers_and_attributes() -> None:
    found = tensors_at(lambda: Offset()(torch.ones(4)))
    assert found == {
        "x": ([4], "float32"),
        "self.start": ([5], "float32"),
        "self.scale": ([6], "float32"),
    }


def test_a_call_over_several_lines() -> None:
    def work() -> None:
        value = torch.ones(3)
        torch.cat(
            [
                value,
                torch.ones(2, 2),
            ]
        )

    assert tensors_at(work) == {"value": ([3], "float32")}


def test_a_line_without_tensors() -> None:
    def work() -> None:
        values = {"x": torch.ones(3)}
        values["y"]

    assert tensors_at(work) == {}
