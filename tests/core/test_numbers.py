"""Numbers in JSON and in sentences."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from support.strategies import facts, floats, same, thoroughly

from headway.core.numbers import (
    decode_number,
    decode_numbers,
    encode_number,
    encode_numbers,
    round_digits,
    say,
    say_bytes,
)


@thoroughly
@given(floats)
def test_every_number_survives_strict_json(value: float) -> None:
    text = json.dumps(encode_number(value), allow_nan=False)
    assert same(decode_number(json.loads(text)), value)


@pytest.mark.parametrize(
    ("value", "name"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_a_nonfinite_number_is_its_name(value: float, name: str) -> None:
    assert encode_number(value) == name
    assert same(decode_number(name), value)
    assert same(float(name), value), "other readers need no table"


@pytest.mark.parametrize("value", [True, None, "1.0", "nan", "inf", "", [], {}, 10**400])
def test_what_is_no_number_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="not a number"):
        decode_number(value)


@thoroughly
@given(facts)
def test_a_structure_survives_strict_json(value: dict[str, Any]) -> None:
    text = json.dumps(encode_numbers(value), allow_nan=False)
    assert same(decode_numbers(json.loads(text)), value)


def test_tuples_become_lists_and_keys_become_text() -> None:
    assert encode_numbers({1: (math.nan, [math.inf])}) == {"1": ["NaN", ["Infinity"]]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00012, "0.00012"),
        (4970000.0, "4.97e+06"),
        (12.3456, "12.3"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_a_number_in_a_sentence_has_three_digits(value: float, text: str) -> None:
    assert say(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**5, "3072.0 TiB"),
    ],
)
def test_bytes_are_said_in_a_unit_people_can_read(count: int, text: str) -> None:
    assert say_bytes(count) == text


@thoroughly
@given(floats)
def test_rounding_keeps_the_significant_digits(value: float) -> None:
    rounded = round_digits(value, 6)
    if math.isfinite(value):
        assert rounded == pytest.approx(value, rel=1e-5, abs=1e-310)
    else:
        assert same(rounded, value)
