"""Previews of failing samples: what is a picture, what is text, and what is kept of it."""

from __future__ import annotations

import base64
import functools
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.pictured_run import BAD, Pictures, Words, train_on_pictures
from torch.utils.data import DataLoader, Subset

from headway.core.records import EventRecord
from headway.explain.incident_file.sample_preview import (
    MAX_CHARACTERS,
    MAX_PICTURE_BYTES,
    find_decoder,
    preview_samples,
)
from headway.integrations._shared import BatchRerun
from headway.output.incident_view import read_head, read_samples
from headway.rerun.recorded_batch import RecordedBatch
from headway.rerun.rerun_results import _data_sources


def only(batch: Any, row: int = 0, **more: Any) -> list[dict[str, Any]]:
    """The parts of one sample."""
    (found,) = preview_samples([batch], {0: [row]}, **more)
    parts: list[dict[str, Any]] = found["parts"]
    return parts


def decoded(png: str) -> torch.Tensor:
    """Height × width × 3."""
    data = base64.b64decode(png)
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    raw = torch.frombuffer(bytearray(zlib.decompress(data[41 : 41 + length])), dtype=torch.uint8)
    return raw.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


def test_a_picture_is_shown_and_its_bad_pixels_marked() -> None:
    image = torch.zeros(2, 3, 16, 24)
    image[1, 0] = 1.0
    image[1, 2, 3, 4] = float("nan")
    (part,) = only(image, 1)
    shown = decoded(part["png"])
    assert shown.shape == (16, 24, 3)
    assert shown[0, 0].tolist() == [255, 0, 0]
    assert shown[3, 4].tolist() == [255, 0, 255]
    assert part["bad"] == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 64, 32),  # words × features
        torch.rand(2, 5, 32, 32),
        torch.rand(2, 3, 4, 4),
        torch.rand(2, 7),
        torch.full((2, 3, 16, 16), float("nan")),
        torch.randint(0, 9, (2, 3, 16, 16)),
        torch.rand(2, 3, 16, 16, dtype=torch.complex64).real.double()[:, :2],
    ],
)
def test_other_tensors_are_numbers(tensor: torch.Tensor) -> None:
    assert [part["kind"] for part in only(tensor)] == ["numbers"]


def test_a_large_picture_is_reduced() -> None:
    noise = torch.randint(0, 256, (1, 1000, 700, 3), dtype=torch.uint8)
    (part,) = only(noise)
    assert len(base64.b64decode(part["png"])) <= MAX_PICTURE_BYTES
    assert max(decoded(part["png"]).shape) <= 160
    assert part["about"].startswith("1000 × 700 × 3")


def test_words_are_decoded_where_a_tokenizer_is_known() -> None:
    batch = {"input_ids": torch.tensor([[1, 2, -100]]), "mask": torch.tensor([[1, 1, 0]])}
    (ids, mask) = only(batch, decode=find_decoder([DataLoader(Pictures())]))
    assert (ids["kind"], ids["text"], ids["tokens"]) == ("text", "word1 word2", 3)
    assert mask["kind"] == "numbers"
    assert [part["kind"] for part in only(batch)] == ["numbers", "numbers"]


def test_a_tokenizer_that_fails_leaves_the_numbers() -> None:
    def decode(ids: Any) -> str:
        raise IndexError(ids)

    assert only(torch.tensor([[1, 2]]), decode=decode)[0]["kind"] == "numbers"


class _Collator:
    def __init__(self) -> None:
        self.tokenizer = Words()

    def __call__(self, items: Any) -> Any:
        return items


def _closure() -> Any:
    tokenizer = Words()
    return lambda items: (tokenizer, items)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader([1], collate_fn=_Collator()),
        DataLoader(
            [1], collate_fn=functools.partial(lambda items, tokenizer: items, tokenizer=Words())
        ),
        DataLoader([1], collate_fn=_closure()),
        DataLoader([1], collate_fn=_Collator().__call__),
        DataLoader(Subset(Pictures(), [1])),
    ],
    ids=["collator", "partial", "closure", "method", "subset"],
)
def test_where_a_tokenizer_is_found(loader: DataLoader[Any]) -> None:
    decode = find_decoder([loader])
    assert decode is not None
    assert decode([3]) == "word3"


def test_a_trainer_knows_its_tokenizer() -> None:
    trainer = SimpleNamespace(processing_class=Words(), data_collator=None)
    kept = RecordedBatch(torch.tensor([[3]]), run=BatchRerun(lambda batch: None, sources=[trainer]))
    decode = find_decoder(_data_sources([kept]))
    assert decode is not None
    assert decode([3]) == "word3"


def test_no_tokenizer() -> None:
    assert find_decoder([DataLoader([1]), object()]) is None


def test_texts_are_cut() -> None:
    (part,) = only({"x": torch.rand(2), "said": ["a" * 9000, "b"]})[1:]
    assert len(part["text"]) == MAX_CHARACTERS
    assert part["cut"]


def read(run: Path, content: str | None = None) -> list[Any]:
    folder = run / "incidents" / "1-step4"
    if content is not None:
        folder.mkdir(parents=True)
        (folder / "samples.json").write_text(content)
    return read_samples(run, [EventRecord(0, 1, 4, "incident", {})], 0, read_head)


@pytest.mark.parametrize("capture", ["batch", "guilty-rows", "off"])
def test_only_with_capture(tmp_path: Path, capture: str) -> None:
    run = train_on_pictures(tmp_path, capture)
    found = read(run)
    if capture == "off":
        assert found == []
        return
    (sample,) = found
    assert sample.title == f"Sample {BAD} (row 5 of the batch)"
    image, labels, caption, target = sample.parts
    assert image.picture
    assert image.about.endswith("36 not finite, in magenta")
    assert labels.text == "word37 word5 word7"
    assert caption.lines[0] == "picture 37"
    assert target.text == "1"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "nonsense",
        '{"samples": 3}',
        '{"samples": [3, {"parts": 4}]}',
        "[" * 100_000,
        json.dumps({"samples": [{"parts": [{"kind": "image", "png": "data"}]}]}),
        json.dumps({"samples": [{"parts": [{"png": base64.b64encode(b"GIF89a" * 9).decode()}]}]}),
        json.dumps({"samples": [{"parts": [{"png": '" onload="alert(1)'}]}]}),
    ],
)
def test_a_damaged_preview_shows_no_picture(tmp_path: Path, content: str) -> None:
    found = read(tmp_path, content)
    assert not any(part.picture for sample in found for part in sample.parts)


def test_a_picture_that_claims_to_be_huge_is_not_shown(tmp_path: Path) -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 60000, 60000)
    png = base64.b64encode(head).decode()
    found = read(tmp_path, json.dumps({"samples": [{"parts": [{"png": png}]}]}))
    assert found[0].parts[0].picture == ""
