"""Small data sets in the formats that public training scripts read, each with a learnable pattern.

Each function writes to a folder, and writes the same bytes each time.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def mnist(folder: Path) -> None:
    """MNIST's IDX files: each class is a bright block at its own position; 512 and 128 images."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for start, count in (("train", 512), ("t10k", 128)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        pictures = rng.integers(0, 40, (count, 28, 28)).astype(np.uint8)
        for picture, label in zip(pictures, labels, strict=True):
            row, column = 9 * (label // 4), 7 * (label % 4)
            picture[row : row + 8, column : column + 6] += 180
        head = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
        (raw / f"{start}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        head = np.array([2049, count], dtype=">i4").tobytes()
        (raw / f"{start}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def cifar10(folder: Path) -> None:
    """CIFAR-10's pickles: each class has a colour and a position; 5 times 64 images, and 64."""
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = rng.integers(0, 10, 64)
        pictures = rng.integers(60, 120, (64, 3, 32, 32)).astype(np.uint8)
        for picture, label in zip(pictures, labels, strict=True):
            row, column = 10 * (label // 3 % 3), 10 * (label % 3)
            picture[label % 3, row : row + 10, column : column + 10] += 120
        held = {b"data": pictures.reshape(64, -1), b"labels": [int(label) for label in labels]}
        (place / name).write_bytes(pickle.dumps(held))
    meta = {b"label_names": [f"class{number}".encode() for number in range(10)]}
    (place / "batches.meta").write_bytes(pickle.dumps(meta))


def words(folder: Path) -> None:
    """`train.txt`, `valid.txt`, `test.txt`: a word follows the one before it, mostly."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, lines in (("train", 400), ("valid", 60), ("test", 60)):
        text = [" " + " ".join(_sentence(rng)) + " \n" for _ in range(lines)]
        (folder / f"{name}.txt").write_text("".join(text), encoding="utf-8")


def _sentence(rng: np.random.Generator, length: int = 12) -> Iterator[str]:
    word = int(rng.integers(60))
    for _ in range(length):
        yield f"w{word}"
        word = (word * 7 + 3) % 60 if rng.random() < 0.9 else int(rng.integers(60))


VOCABULARY = ["the", "loss", "falls", "and", "then", "rises", "again"]


def one_text(folder: Path) -> None:
    """`wikitext-2.txt`: 10,000 sentences, in which a word follows the one before it, mostly."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = [" " + " ".join(_sentence(rng)) + " \n" for _ in range(14000)]
    (folder / "wikitext-2.txt").write_text("".join(lines), encoding="utf-8")


def characters(folder: Path) -> None:
    """nanoGPT's `train.bin` and `val.bin` (uint16 ids) and `meta.pkl` (the vocabulary)."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz \n"
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(VOCABULARY, 6000))
    ids = np.array([letters.index(letter) for letter in text], dtype=np.uint16)
    cut = len(ids) * 9 // 10
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    forth = {letter: at for at, letter in enumerate(letters)}
    meta = {"vocab_size": len(letters), "stoi": forth, "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def token_shards(folder: Path) -> None:
    """`data00.bin` and `data01.bin`: uint16 ids below 64; 1 begins a text of 30 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(2):
        texts = [[1, *(int(word[1:]) + 2 for word in _sentence(rng, 29))] for _ in range(300)]
        np.array(texts, dtype=np.uint16).tofile(folder / f"data{number:02d}.bin")


def names(folder: Path) -> None:
    """`names.txt`: 2,000 made-up names of two to four syllables."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    syllables = ["an", "bel", "co", "da", "el", "fi", "gor", "ha", "il", "jo", "ka", "lu"]
    made = {"".join(rng.choice(syllables, rng.integers(2, 5))) for _ in range(2500)}
    (folder / "names.txt").write_text("\n".join(sorted(made)[:2000]) + "\n", encoding="utf-8")


def plain_text(folder: Path) -> None:
    """`input.txt`: a text of seven words, 30,000 letters."""
    folder.mkdir(parents=True, exist_ok=True)
    text = " ".join(np.random.default_rng(0).choice(VOCABULARY, 6000))
    (folder / "input.txt").write_text(text + "\n", encoding="utf-8")


def sine(folder: Path) -> None:
    """`traindata.pt`: 12 sine waves of 120 points, each with its own phase."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    phases = np.random.default_rng(0).integers(-80, 80, (12, 1))
    torch.save(np.sin((np.arange(120) + phases) / 20.0), folder / "traindata.pt")


def sentence_pairs(folder: Path) -> None:
    """`train.csv`, `dev.csv`: two sentences; label 1 if they are the same but for one word."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 160), ("dev", 48)):
        rows = ["label,sentence1,sentence2"]
        for at in range(count):
            first = list(_sentence(rng, 8))
            same = at % 2 == 1
            second = [*first[:-1], "w1"] if same else list(_sentence(rng, 8))
            rows.append(f"{int(same)},{' '.join(first)},{' '.join(second)}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def labelled_words(folder: Path) -> None:
    """`train.json`, `dev.json`, one sentence a line: words and a tag that follows from the word."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 160), ("dev", 48)):
        lines = []
        for _ in range(count):
            line = list(_sentence(rng, 8))
            tags = [("O", "B-PER", "B-LOC")[int(word[1:]) % 3] for word in line]
            lines.append(json.dumps({"tokens": line, "ner_tags": tags}))
        (folder / f"{name}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tokenizer(folder: Path, kind: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = {token: at for at, token in enumerate([*special, *(f"w{n}" for n in range(60))])}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    named = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    if kind == "gpt2":
        named |= {"bos": "[CLS]", "eos": "[SEP]"}
    tokens = {f"{name}_token": token for name, token in named.items()}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **tokens).save_pretrained(
        folder
    )
    return ids


def tiny_bert(folder: Path) -> None:
    """A BERT of two layers with random weights, and a tokenizer for the words `w0` to `w59`."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    ids = _tokenizer(folder, "bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = BertConfig(
        vocab_size=len(ids), intermediate_size=64, max_position_embeddings=64, **sizes
    )
    BertForMaskedLM(settings).save_pretrained(folder)


def tiny_gpt2(folder: Path) -> None:
    """A GPT-2 of two layers with random weights, and a tokenizer for the words `w0` to `w59`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = _tokenizer(folder, "gpt2")
    torch.manual_seed(0)
    settings = GPT2Config(
        vocab_size=len(ids), n_embd=32, n_layer=2, n_head=2, n_positions=64,
        bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(settings).save_pretrained(folder)


METRIC = '''"""The share of right answers."""

import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        kinds = {KINDS}
        features = datasets.Features({"predictions": kinds, "references": kinds})
        return evaluate.MetricInfo(
            description=__doc__, citation="", inputs_description="", features=features
        )

    def _compute(self, predictions, references):
        pairs = [pair for both in zip(predictions, references) for pair in self.pairs(*both)]
        return {"NAME": sum(a == b for a, b in pairs) / len(pairs)}

    def pairs(self, first, second):
        return list(zip(first, second)) if isinstance(first, (list, tuple)) else [(first, second)]
'''


def metric(folder: Path) -> None:
    """A metric for `evaluate.load(NAME)`, NAME being the folder's name, which needs no download."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = 'datasets.Value("int64")'
    text = METRIC.replace("{KINDS}", kinds).replace("NAME", "accuracy")
    (folder / f"{folder.name}.py").write_text(text, encoding="utf-8")


def hourly(folder: Path) -> None:
    """`ETTh1.csv`: seven columns, each a daily wave with noise. 700 hours."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    hours = np.arange(16 * 30 * 24 + 700)
    phases = rng.uniform(0, 6.28, 7)
    table = np.sin(hours[:, None] * 2 * np.pi / 24 + phases) + rng.normal(0, 0.1, (len(hours), 7))
    start = np.datetime64("2016-07-01T00")
    rows = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    for hour, values in zip(hours, table, strict=True):
        when = str(start + np.timedelta64(int(hour), "h")).replace("T", " ")
        rows.append(f"{when}:00:00," + ",".join(f"{value:.4f}" for value in values))
    (folder / "ETTh1.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def ratings(folder: Path) -> None:
    """MovieLens's `ratings.dat`: users and films of two groups; a group rates its films 4 or 5."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(4000):
        user, film = int(rng.integers(1, 61)), int(rng.integers(1, 41))
        stars = int(rng.integers(4, 6)) if user % 2 == film % 2 else int(rng.integers(1, 4))
        rows.append(f"{user}::{film}::{stars}::978300760")
    (folder / "ratings.dat").write_text("\n".join(rows) + "\n", encoding="utf-8")


def masks(folder: Path) -> None:
    """`imgs/N.png` and `masks/N.png`: a bright square on a dark ground, and where it is."""
    rng = np.random.default_rng(0)
    for number in range(24):
        row, column = rng.integers(0, 40, 2)
        mask = np.zeros((64, 64), dtype=np.uint8)
        mask[row : row + 24, column : column + 24] = 1
        picture = rng.integers(0, 60, (64, 64, 3)).astype(np.uint8) + 150 * mask[..., None]
        for name, pixels in (("imgs", picture), ("masks", mask)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{number}.png").write_bytes(png(pixels))


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """A picture as a PNG file: 8 bits, grey or red, green, blue."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    head = np.array([width, height], dtype=">u4").tobytes()
    parts = (
        (b"IHDR", head + bytes([8, 2 if pixels.ndim == 3 else 0, 0, 0, 0])),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    chunks = (
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
        for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def graph(folder: Path) -> None:
    """Cora's `cora.content` and `cora.cites`: 1,600 papers of 7 classes; they cite their class."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    count, width = 1600, 70
    labels = rng.integers(0, 7, count)
    lines = []
    for paper, label in enumerate(labels):
        found = rng.random(width) < np.where(np.arange(width) // 10 == label, 0.3, 0.05)
        found[10 * label] = True
        bits = " ".join("1" if bit else "0" for bit in found)
        lines.append(f"{paper + 1}\t" + bits.replace(" ", "\t") + f"\tclass{label}")
    (folder / "cora.content").write_text("\n".join(lines) + "\n", encoding="utf-8")
    cites = []
    for paper, label in enumerate(labels):
        alike = rng.choice(np.flatnonzero(labels == label), 2)
        cites += [f"{paper + 1}\t{other + 1}" for other in alike if other != paper]
    (folder / "cora.cites").write_text("\n".join(cites) + "\n", encoding="utf-8")


def planetoid(folder: Path) -> None:
    """The files `ind.cora.*` of Planetoid: 700 papers of 7 classes; papers cite their class."""
    from scipy import sparse

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    count, width, tests = 900, 70, 100
    labels = np.concatenate([np.repeat(np.arange(7), 20), rng.integers(0, 7, count - 140)])
    found = rng.random((count, width)) < np.where(
        np.arange(width) // 10 == labels[:, None], 0.3, 0.05
    )
    known, one_hot = sparse.csr_matrix(found.astype(np.float32)), np.eye(7, dtype=np.int32)[labels]
    cites: dict[int, list[int]] = {paper: [] for paper in range(count)}
    for paper, label in enumerate(labels):
        for other in rng.choice(np.flatnonzero(labels == label), 2):
            cites[paper].append(int(other))
            cites[int(other)].append(paper)
    cut = count - tests
    held = {
        "x": known[:140], "tx": known[cut:], "allx": known[:cut],
        "y": one_hot[:140], "ty": one_hot[cut:], "ally": one_hot[:cut], "graph": cites,
    }  # fmt: skip
    for name, what in held.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(what))
    order = "\n".join(str(paper) for paper in range(cut, count))
    (folder / "ind.cora.test.index").write_text(order + "\n", encoding="utf-8")


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__.replace("_", "-"): maker
    for maker in (
        mnist, cifar10, words, one_text, characters, token_shards, names, plain_text, sine,
        sentence_pairs, labelled_words, tiny_bert, tiny_gpt2, metric, hourly, ratings, masks,
        graph, planetoid,
    )
}  # fmt: skip
