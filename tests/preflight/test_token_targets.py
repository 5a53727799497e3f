"""Targets of language models: shifted twice, not at all, and end tokens that are never one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Finding
from headway.preflight.runner import run_check

slow = pytest.mark.slow
V, T, B, EOS, PAD = 30, 12, 8, 1, 0


def found(work: Callable[[], None], *codes: str) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code in codes]


class Transformer(nn.Module):
    """A small transformer, causal or not; computes its loss itself if it gets labels."""

    def __init__(self, *, causal: bool = True, shifts_input: bool = False) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(V, 16), nn.Embedding(64, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, V)
        self.causal, self.shifts_input = causal, shifts_input

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        ids = F.pad(input_ids, (1, -1), value=2) if self.shifts_input else input_ids
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        logits = self.head(self.layer(x, src_mask=mask if self.causal else None))
        if labels is None:
            return logits
        # As in Hugging Face: the model shifts the labels.
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(logits.reshape(-1, V), shifted.reshape(-1)), logits


def train(
    loss_of: Callable[[nn.Module, Tensor], Tensor], *, steps: int = 3, **kind: bool
) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        model = Transformer(**kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(steps):
            loss = loss_of(model, torch.randint(2, V, (B, T + 1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def twice_by_model(model: nn.Module, text: Tensor) -> Tensor:
    loss, _ = model(input_ids=text[:, :-1], labels=text[:, 1:])
    return loss


def twice_by_hand(model: nn.Module, text: Tensor) -> Tensor:
    x, y = text[:, :-1], text[:, 1:]
    return F.cross_entropy(model(x)[:, :-1].reshape(-1, V), y[:, 1:].reshape(-1))


def not_shifted(model: nn.Module, text: Tensor) -> Tensor:
    return F.cross_entropy(model(text).reshape(-1, V), text.reshape(-1))


def once_by_model(model: nn.Module, text: Tensor) -> Tensor:
    loss, _ = model(input_ids=text, labels=text.clone())
    return loss


def once_by_hand(model: nn.Module, text: Tensor) -> Tensor:
    return F.cross_entropy(model(text[:, :-1]).reshape(-1, V), text[:, 1:].reshape(-1))


def several_tokens(model: nn.Module, text: Tensor) -> Tensor:
    """Multi-token prediction: the next token, and the one after it."""
    x, logits = text[:, :-1], model(text[:, :-1])
    after = F.cross_entropy(logits[:, :-1].reshape(-1, V), x[:, 1:].reshape(-1))
    return after + F.cross_entropy(logits[:, :-2].reshape(-1, V), x[:, 2:].reshape(-1))


def with_gaps(model: nn.Module, text: Tensor) -> Tensor:
    hidden = torch.rand(text.shape) < 0.3
    labels = text.masked_fill(~hidden, -100)
    masked = text.masked_fill(hidden, 2)
    return F.cross_entropy(model(masked).reshape(-1, V), labels.reshape(-1))


def periodic(model: nn.Module, text: Tensor) -> Tensor:
    text = text[:, :2].repeat(1, 6)
    return F.cross_entropy(model(text[:, :-1]).reshape(-1, V), text[:, 1:].reshape(-1))


@pytest.mark.parametrize(
    ("loss_of", "words", "line"),
    [
        (twice_by_model, "shifted twice", "cross_entropy"),
        pytest.param(twice_by_hand, "shifted twice", "cross_entropy", marks=slow),
        (not_shifted, "not shifted", "cross_entropy"),
    ],
)
def test_the_wrong_token_is_asked_for(loss_of: Any, words: str, line: str) -> None:
    [finding] = found(train(loss_of), "HD118")
    assert words in finding.message
    assert (finding.where.file or "").endswith("test_token_targets.py")
    with open(finding.where.file or "", encoding="utf-8") as file:
        assert line in file.readlines()[(finding.where.line or 1) - 1]


@slow
@pytest.mark.parametrize(
    "work",
    [
        train(once_by_model),
        train(once_by_hand),
        train(several_tokens),
        train(with_gaps, causal=False),
        train(periodic),
        train(not_shifted, causal=False),  # an autoencoder
        train(not_shifted, shifts_input=True),
    ],
)
def test_models_that_are_asked_for_the_right_token(work: Callable[[], None]) -> None:
    assert not found(work, "HD118", "HD119")


def sentences(
    pad: int, *, end: bool = True, width: int | None = None, full: bool = False
) -> list[Tensor]:
    """Rows of different lengths and their attention mask, padded on the right."""
    lengths = torch.randint(4, 24, (B,))
    if full:
        lengths[0] = 23
    rows = [
        torch.cat([torch.randint(2, V, (int(n),)), torch.tensor([EOS] if end else [])])
        for n in lengths
    ]
    longest = width or max(map(len, rows))
    ids = torch.stack([F.pad(row.long(), (0, longest - len(row)), value=pad) for row in rows])
    mask = torch.stack([(torch.arange(longest) < len(row)).long() for row in rows])
    return [ids, mask]


def fine_tune(
    pad: int,
    *,
    by_mask: bool = False,
    with_mask: bool = True,
    at_padding: bool = False,
    **rows: Any,
) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(6):
            ids, mask = sentences(pad, **rows)
            labels = ids.clone()
            labels[mask == 0 if by_mask else ids == pad] = -100
            given = 1 - mask if at_padding else mask
            loss, _ = model(ids, given if with_mask else None, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


@pytest.mark.parametrize(
    "work",
    [
        fine_tune(EOS),
        pytest.param(fine_tune(EOS, at_padding=True), marks=slow),
        pytest.param(fine_tune(EOS, width=32), marks=slow),
        pytest.param(fine_tune(EOS, with_mask=False), marks=slow),
        fine_tune(EOS, with_mask=False, full=True),  # every batch is as long
    ],
)
def test_an_end_token_that_is_masked_with_the_padding(work: Callable[[], None]) -> None:
    [finding] = found(work, "HD119")
    assert f"token {EOS} ends 100%" in finding.message
    assert finding.where.line is not None


@pytest.mark.parametrize(
    "work",
    [
        fine_tune(EOS, by_mask=True),
        fine_tune(PAD, end=False, at_padding=True),  # the mask is true at the padding
        *(
            pytest.param(work, marks=slow)
            for work in (
                fine_tune(PAD),
                fine_tune(PAD, with_mask=False),
                fine_tune(EOS, end=False),
                fine_tune(PAD, end=False),
                fine_tune(PAD, width=32, with_mask=False),
                fine_tune(PAD, width=25, with_mask=False, full=True),
            )
        ),
    ],
)
def test_end_tokens_that_are_learned_and_padding_of_its_own(work: Callable[[], None]) -> None:
    assert not found(work, "HD118", "HD119")


def weights_after(work: Callable[[], list[Tensor]], *, watched: bool) -> list[Tensor]:
    kept: list[Tensor] = []
    if watched:
        run_check(lambda: kept.extend(work()), max_steps=None)
    else:
        kept.extend(work())
    return kept


def test_the_trial_leaves_the_training_as_it_is() -> None:
    def work() -> list[Tensor]:
        torch.manual_seed(0)
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(3):
            loss = not_shifted(model, torch.randint(2, V, (B, T)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain, watched = weights_after(work, watched=False), weights_after(work, watched=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
