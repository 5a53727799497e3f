"""A batch's content as a text: stable everywhere, different where the batches are."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.rerun.recorded_batch import MAX_DEPTH, content_hash

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def of(batch: Any) -> str:
    found = content_hash(batch)
    assert found.whole
    return found.text


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    seed = draw(st.integers(0, 5))
    values = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(seed))
    return values.to(draw(st.sampled_from(DTYPES)))


leaves = (
    tensors()
    | tensors().filter(lambda t: t.dtype is not torch.bfloat16).map(lambda t: t.numpy())
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.just(math.nan)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
structures = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def spelled(value: Any) -> Any:
    """A structure as plain data: what must differ where the hash differs, and only there."""
    if isinstance(value, Tensor):
        array = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
        name = str(value.dtype).removeprefix("torch.")
        return "array", name, tuple(value.shape), array.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, dict):
        return "mapping", tuple(sorted((key, spelled(item)) for key, item in value.items()))
    if isinstance(value, list):
        return "list", tuple(spelled(item) for item in value)
    return type(value).__name__, repr(value)


@settings(deadline=None, max_examples=200)
@given(structures, structures)
def test_equal_exactly_where_the_structures_are(one: Any, other: Any) -> None:
    assert of(one) == of(copy.deepcopy(one))
    assert (of(one) == of(other)) == (spelled(one) == spelled(other))


@settings(deadline=None, max_examples=100)
@given(structures)
def test_lists_and_tuples_are_the_same_and_so_is_every_order_of_a_mapping(batch: Any) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return OrderedDict((key, turned(value[key])) for key in reversed(value))
        return tuple(turned(item) for item in value) if isinstance(value, list) else value

    assert of(batch) == of(turned(batch))


def test_neither_strides_nor_gradients_nor_numpy_matter() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    same = [
        tensor.T.contiguous().T,
        tensor.clone().requires_grad_(),
        torch.nn.Parameter(tensor),
        tensor.numpy(),
        tensor.numpy().T.copy().T,
    ]
    assert {of(item) for item in same} == {of(tensor)}
    conjugate = torch.tensor([1 - 2j]).conj()
    assert of(conjugate) == of(torch.tensor([1 + 2j]))
    assert of(conjugate.imag) == of(torch.tensor([2.0]))


def test_every_bit_matters() -> None:
    tensor = torch.zeros(100)
    different = [tensor, tensor.double(), tensor.reshape(10, 10), tensor[:99], tensor.tolist()]
    for at in range(100):
        changed = tensor.clone()
        changed[at] = 1e-45
        different.append(changed)
    assert len({of(item) for item in different}) == len(different)


Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: Tensor
    name: str


def test_other_kinds_of_content() -> None:
    index, values = torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0])
    kinds = [
        torch.sparse_coo_tensor(index, values, (4,), check_invariants=True),
        torch.tensor([1 + 2j]),
        torch.tensor([1 - 2j]),
        np.float32(3),
        np.float64(3),
        np.array(["a", "bc"]),
        np.array([{"a": 1}, None], dtype=object),
        np.array([1.0], dtype=">f4"),
        Pair(1, 2),
        Sample(torch.ones(2), "a"),
        Sample(torch.ones(2), "b"),
        {1, 2, 3},
        frozenset("ab"),
        Path("a/b"),
        1j,
        ["ab", "c"],
        ["a", "bc"],
        [["a"], "bc"],
    ]
    assert len({of(item) for item in kinds}) == len(kinds)
    assert of(Pair(1, 2)) == of([1, 2])
    assert of({3, 1, 2}) == of({1, 2, 3})


class Opaque:
    """Looking into it is impossible, and its address is of no use."""


class Rude(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    "thing",
    [Opaque(), Rude(a=1), (item for item in [1]), torch.ones(2, device="meta"), object],
    ids=["object", "rude", "generator", "meta", "class"],
)
def test_what_cannot_be_looked_into_is_said(thing: Any) -> None:
    found = content_hash([torch.ones(2), thing])
    assert not found.whole
    assert found.text != content_hash([torch.zeros(2), thing]).text
    if isinstance(thing, Opaque):
        assert found.text == content_hash([torch.ones(2), Opaque()]).text


def test_a_generator_is_not_read() -> None:
    numbers = iter([1, 2, 3])
    content_hash({"x": numbers})
    assert list(numbers) == [1, 2, 3]


def test_a_structure_that_holds_itself_comes_to_an_end() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert not content_hash(loop).whole
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert content_hash(deep).whole
    assert not content_hash([[deep]]).whole


MADE = """
import numpy, torch
from headway.rerun.recorded_batch import content_hash
batch = {
    "pixels": torch.arange(24, dtype=torch.float32).reshape(2, 3, 4),
    "half": [torch.ones(3, dtype=torch.bfloat16), numpy.arange(5)],
    "names": ("a", "ü"),
    "set": {"x", "y", "z", "w"},
    "scale": 0.1,
    "none": None,
}
"""


@pytest.mark.parametrize("seed", ["0", "1", "random"])
@pytest.mark.slow
def test_the_same_in_another_process(seed: str) -> None:
    """Whatever the seed of Python's own hashes, on which the order of a set depends."""
    space: dict[str, Any] = {}
    exec(MADE, space)
    told = subprocess.run(
        [sys.executable, "-c", MADE + "print(content_hash(batch).text)"],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == of(space["batch"])


def test_the_same_for_ever() -> None:
    """People keep run directories: a hash written by one release is found again by the next."""
    space: dict[str, Any] = {}
    exec(MADE, space)
    assert of(space["batch"]) == "a81d818bb1d93844669d0bdd628168e8"
