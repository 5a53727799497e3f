"""Recurrent networks, sequences of different lengths, language models."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE, LENGTH, WORDS = 8, 7, 11


def sequences(seed: int, length: int = LENGTH) -> Batch:
    g = draw(seed)
    lengths = torch.randint(2, length + 1, (SIZE,), generator=g)
    return {
        "x": torch.randn(SIZE, length, 4, generator=g),
        "mask": torch.arange(length) < lengths[:, None],
        "y": torch.randint(0, 3, (SIZE,), generator=g),
    }


def text(seed: int) -> Batch:
    g = draw(seed)
    words = torch.randint(0, WORDS - 1, (SIZE, LENGTH + 1), generator=g)
    return {"words": words[:, :-1].contiguous(), "next": words[:, 1:].contiguous()}


# A hidden state that is carried from one stretch of text to the next.


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)
        self.hidden = torch.zeros(1, SIZE, 6)

    def forward(self, x: Tensor) -> Tensor:
        out, hidden = self.rnn(x, self.hidden)  # born: hidden-from-before
        self.latest = hidden.detach()
        return self.head(out[:, -1])


def last_word(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def hidden_from_before() -> Case:
    model = Stateful()
    model.hidden[0, :, 2] = math.nan

    def repair() -> None:
        model.hidden = torch.zeros_like(model.hidden)

    return Case(model, (), sequences(3), last_word, repair)


# Pooling over the valid steps of a sequence that has none.


class MeanPooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        kept = mask[..., None].to(out.dtype)
        pooled = (out * kept).sum(1) / kept.sum(1)  # born: length-zero
        return self.head(pooled)


def pooled_words(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["mask"]), batch["y"])


def length_zero() -> Case:
    bad = sequences(3)
    bad["mask"][2] = False
    return Case(MeanPooled(), (sequences(1), sequences(2)), bad, pooled_words)


class AttentionPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 1)

    def forward(self, out: Tensor, mask: Tensor) -> Tensor:
        scores = self.score(out).squeeze(-1).masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=1)  # born: empty-utterance
        return (weights[..., None] * out).sum(1)


class AttentionPooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.pool = AttentionPool()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.head(self.pool(out, mask))


def empty_utterance() -> Case:
    bad = sequences(3)
    bad["mask"][0] = False
    return Case(AttentionPooled(), (sequences(1), sequences(2)), bad, pooled_words)


# Language models.


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 5)
        self.rnn = nn.GRU(5, 6, batch_first=True)
        self.head = nn.Linear(6, WORDS)
        unused = torch.zeros(WORDS)
        unused[-1] = float("-inf")
        self.register_buffer("unused", unused)

    def forward(self, words: Tensor) -> Tensor:
        out, _ = self.rnn(self.embed(words))
        return self.head(out) + self.unused


def next_word(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["words"])
    return F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())  # born: all-ignored


def all_ignored() -> Case:
    bad = text(3)
    bad["next"].fill_(-100)
    return Case(LanguageModel(), (text(1), text(2)), bad, next_word)


def answers_only(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["words"])
    each = F.cross_entropy(logits.transpose(1, 2), batch["next"], reduction="none")
    return each[batch["words"] > 3].mean()  # born: no-answer-in-it


def no_answer_in_it() -> Case:
    bad = text(3)
    bad["words"].clamp_(max=3)
    return Case(LanguageModel(), (text(1), text(2)), bad, answers_only)


def perplexity(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["words"]).float()
    each = F.cross_entropy(logits.transpose(1, 2), batch["next"], reduction="none")
    return torch.exp(each.mean(1)).mean()  # born: perplexity


def perplexing() -> Case:
    model, bad = LanguageModel(), text(3)
    with torch.no_grad():  # one word that is all but impossible, and a text made of it
        model.head.bias[WORDS - 2] = -130.0
    for batch in (healthy := (text(1), text(2))) + (bad,):
        batch["next"].clamp_(max=WORDS - 3)
    bad["next"][5] = WORDS - 2
    return Case(model, healthy, bad, perplexity)


# A recurrence that only grows.


class LinearRecurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transition = nn.Parameter(2.0 * torch.eye(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            h = x[:, step] + h @ self.transition  # born: growing-state
        return self.head(h)


def growing_state() -> Case:
    healthy = (sequences(1), sequences(2))
    return Case(LinearRecurrence(), healthy, sequences(3, length=150), last_word)


# A transcript that is longer than its recording.


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.rnn(x)[0]).float(), dim=-1)


def recordings(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, LENGTH, 4, generator=g),
        "letters": torch.randint(1, 5, (SIZE, 3), generator=g),
        "frames": torch.full((SIZE,), LENGTH),
        "length": torch.full((SIZE,), 3),
    }


def ctc(model: nn.Module, batch: Batch) -> Tensor:
    log_p = model(batch["x"]).transpose(0, 1)
    return F.ctc_loss(log_p, batch["letters"], batch["frames"], batch["length"])  # born: too-long


def too_long() -> Case:
    bad = recordings(3)
    bad["frames"][1] = 2
    return Case(Recogniser(), (recordings(1), recordings(2)), bad, ctc)


SCENARIOS = (
    Scenario(
        "hidden-from-before",
        hidden_from_before,
        "carried-state",
        "gru",
        "rnn",
    ),
    Scenario("length-zero", length_zero, "zero-over-zero", "div", rows=(2,)),
    Scenario(
        "empty-utterance",
        empty_utterance,
        "masked-softmax-row",
        "softmax",
        "pool",
        rows=(0,),
        decoy=True,
    ),
    Scenario(
        "all-ignored", all_ignored, "mean-of-nothing", ("nll_loss", "cross_entropy"), decoy=True
    ),
    Scenario("no-answer-in-it", no_answer_in_it, "mean-of-nothing", "mean", decoy=True),
    Scenario("perplexity", perplexing, "exp-overflow", "exp", rows=(5,), decoy=True),
    Scenario("growing-state", growing_state, "overflow", ("mm", "matmul", "add")),
    Scenario("too-long", too_long, "log-of-zero", "ctc_loss", rows=(1,)),
)
