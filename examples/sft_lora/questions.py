"""Questions about units with their answers, and a tokenizer of a few dozen words."""

from __future__ import annotations

import random
import re

UNITS = {
    ("kg", "g"): 1000,
    ("km", "m"): 1000,
    ("l", "ml"): 1000,
    ("m", "cm"): 100,
    ("ha", "a"): 100,
    ("cm", "mm"): 10,
}
WORDS = ["<pad>", "<end>", "<answer>", "</answer>", "how", "many", "are", "in", "?", "the"]
WORDS += ["result", "is", "."]
WORDS += sorted({unit for pair in UNITS for unit in pair}) + list("0123456789")
NUMBER = {word: number for number, word in enumerate(WORDS)}
PAD, END = NUMBER["<pad>"], NUMBER["<end>"]


def encode(text: str) -> list[int]:
    """Numbers are split into digits, everything else into words."""
    return [NUMBER[word] for word in re.findall(r"\d|[^\s\d]+", text)]


def decode(tokens: list[int]) -> str:
    return " ".join(WORDS[token] for token in tokens)


def questions(seed: int = 0) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and test set: pairs of a question and the number it asks for."""
    pairs = [
        (f"how many {small} are in {amount} {large} ?", str(amount * factor))
        for (large, small), factor in UNITS.items()
        for amount in range(1, 100)
    ]
    random.Random(seed).shuffle(pairs)
    return pairs[64:], pairs[:64]


def number_in(text: str) -> str | None:
    """The number between the tags; None where there are no valid tags."""
    found = re.fullmatch(r"<answer> ((?:\d )+)</answer>.*", text)
    return found[1].replace(" ", "") if found else None
