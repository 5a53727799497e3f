"""Padding that changes outputs and positions that do not; with masks and tables that are right."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from headway.core.findings import Finding, Severity
from headway.preflight.runner import run_check

slow = pytest.mark.slow
V, B, PAD = 30, 12, 0


def found(work: Callable[[], object], code: str) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [
        item
        for item in checked.report.findings
        if item.code == code and item.severity >= Severity.WARNING
    ]


class Classifier(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(V, 16, padding_idx=PAD)
        self.rnn = nn.LSTM(16, 16, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        x = self.drop(self.embed(ids))
        padding = ids == PAD
        if self.kind == "last step":
            x = self.rnn(x)[0][:, -1]
        elif self.kind == "packed":
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x = self.rnn(packed)[1][0][-1]
        elif self.kind == "last token":
            out = self.rnn(x)[0]
            x = out.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 16)).squeeze(1)
        elif self.kind == "convolution":
            x = self.conv(x.transpose(1, 2)).relu().amax(2)
        elif self.kind == "mean of all":
            x = x.mean(1)
        else:
            mask = padding if self.kind == "masked attention" else None
            x = self.layer(x, src_key_padding_mask=mask)
            x = x.masked_fill(padding[..., None], 0.0).sum(1) / lengths[:, None]
        return self.head(x)


def classify(kind: str) -> Callable[[], list[Tensor]]:
    def work() -> list[Tensor]:
        torch.manual_seed(0)
        model = Classifier(kind)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(3):
            lengths = torch.randint(4, 20, (B,))
            ids = torch.randint(1, V, (B, int(lengths.max())))
            ids = ids.masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], PAD)
            optimizer.zero_grad()
            F.cross_entropy(model(ids, lengths), ids[:, 0] % 3).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    return work


@pytest.mark.parametrize(
    ("kind", "op"),
    [
        ("last step", "__getitem__"),
        pytest.param("mean of all", "mean", marks=slow),
        pytest.param("attention", None, marks=slow),
    ],
)
def test_outputs_that_change_with_the_padding(kind: str, op: str | None) -> None:
    [finding] = found(classify(kind), "HD513")
    assert (finding.where.file or "").endswith("test_sequence_trials.py")
    assert finding.where.function == "forward"
    assert op is None or finding.where.op == op


@pytest.mark.parametrize(
    "kind",
    [
        "packed",
        *(
            pytest.param(kind, marks=slow)
            for kind in ("last token", "masked attention", "convolution")
        ),
    ],
)
def test_padding_that_is_masked(kind: str) -> None:
    assert not found(classify(kind), "HD513")


class Encodings(nn.Module):
    """As in the tutorial, for (time, batch) or (batch, time)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        angles = torch.arange(64)[:, None] / 100 ** (torch.arange(16) / 16)
        self.register_buffer("pe", angles.sin()[None])
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        table: Tensor = self.get_buffer("pe")
        if self.kind == "one for all":
            return x + table[:, x.shape[1]]
        if self.kind == "along the batch":
            return x + self.pe.transpose(0, 1)[: x.shape[0]]
        return x + self.pe[:, : x.shape[1]]


class Model(nn.Module):
    def __init__(self, kind: str, *, causal: bool, pooled: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 16)
        self.encode = nn.Identity() if kind in ("none", "zeros") else Encodings(kind)
        self.positions = nn.Parameter(torch.zeros(1, 64, 16)) if kind == "zeros" else None
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, V)
        self.causal, self.pooled, self.kind = causal, pooled, kind

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.positions is not None:
            x = x + self.positions[:, : ids.shape[1]]
        elif self.kind == "recurrent":
            x = x.cumsum(1) + self.encode(x)
        else:
            x = self.encode(x)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.layers(x, mask=mask if self.causal else None)
        return self.head(x.mean(1) if self.pooled else x)


def model_language(
    kind: str, *, causal: bool = True, pooled: bool = False
) -> Callable[[], list[Tensor]]:
    def work() -> list[Tensor]:
        torch.manual_seed(0)
        model = Model(kind, causal=causal, pooled=pooled)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(2):
            text = torch.randint(1, V, (B, 11))
            logits = model(text[:, :-1])
            target = text[:, 0] if pooled else text[:, 1:]
            optimizer.zero_grad()
            F.cross_entropy(logits.reshape(-1, V), target.reshape(-1)).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    return work


@pytest.mark.parametrize(
    "work",
    [
        model_language("one for all"),
        pytest.param(model_language("along the batch"), marks=slow),
        pytest.param(model_language("one for all", causal=False), marks=slow),
        pytest.param(model_language("along the batch", causal=False, pooled=True), marks=slow),
    ],
)
def test_one_position_for_all(work: Callable[[], object]) -> None:
    [finding] = found(work, "HD319")
    assert "encode.pe" in finding.message
    assert (finding.where.file or "").endswith("test_sequence_trials.py")
    assert finding.where.function == "forward"


@pytest.mark.parametrize(
    "work",
    [
        model_language("right"),
        *(
            pytest.param(work, marks=slow)
            for work in (
                model_language("right", causal=False),
                model_language("right", causal=False, pooled=True),
                model_language("none"),
                model_language("none", causal=False, pooled=True),
                model_language("zeros"),
                model_language("recurrent"),
            )
        ),
    ],
)
def test_positions_that_count(work: Callable[[], object]) -> None:
    assert not found(work, "HD319")


class Frames(nn.Module):
    """Reads vectors instead of tokens, time first."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inputs = nn.Linear(5, 16)
        table = torch.randn(64, 1, 16)
        self.positions = nn.Parameter(table.transpose(0, 1) if kind == "batch" else table)
        self.attention = nn.MultiheadAttention(16, 2)
        self.head = nn.Linear(16, 2)
        self.kind = kind

    def forward(self, frames: Tensor) -> Tensor:
        x = self.inputs(frames)
        if self.kind == "batch":
            x = x + self.positions[:, : x.shape[1]]
        else:
            x = x + self.positions[: x.shape[0]]
        return self.head(x + self.attention(x, x, x)[0])


@pytest.mark.parametrize("kind", ["batch", "time"])
def test_positions_of_vectors(kind: str) -> None:
    def work() -> None:
        torch.manual_seed(0)
        model = Frames(kind)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(2):
            frames = torch.randn(9, B, 5)
            optimizer.zero_grad()
            F.mse_loss(model(frames), frames[..., :2].cumsum(0)).backward()
            optimizer.step()

    findings = found(work, "HD319")
    assert [item.where.function for item in findings] == ["forward"] * (kind == "batch")


@pytest.mark.parametrize("work", [classify("last step"), model_language("one for all")])
def test_the_trials_leave_the_training_as_it_is(work: Callable[[], list[Tensor]]) -> None:
    kept: list[Tensor] = []
    run_check(lambda: kept.extend(work()), max_steps=None)
    assert all(torch.equal(one, other) for one, other in zip(work(), kept, strict=True))


class Patches(nn.Module):
    """Attention over vectors, with a mask that multiplies the scores or fills them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.score, self.head = kind, nn.Linear(8, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.score(x).squeeze(-1)
        filled = scores.masked_fill(mask == 0, -1e9)
        scores = scores * mask if self.kind == "product" else filled
        return self.head((torch.softmax(scores, 1)[..., None] * x).sum(1))


class Pair(nn.Module):
    """Two sentences of one padded length; returns its loss alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embed, self.head = kind, nn.Embedding(V, 16), nn.Linear(32, 3)

    def pool(self, ids: Tensor) -> Tensor:
        real = (ids != PAD)[..., None].float()
        x = torch.tanh(self.embed(ids))
        return x.mean(1) if self.kind == "mean of all" else (x * real).sum(1) / real.sum(1)

    def forward(self, one: Tensor, two: Tensor, labels: Tensor) -> Tensor:
        both = torch.cat([self.pool(one), self.pool(two)], 1)
        return F.cross_entropy(self.head(both), labels)


def other_inputs(kind: str, make: type[Patches | Pair], width: int) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        model = make(kind)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            lengths = torch.randint(4, 17, (B,))
            lengths[0] = 17
            real = (torch.arange(17) < lengths[:, None]).float()
            labels = torch.randint(2, (B,))
            if make is Patches:
                out = model(torch.randn(B, 17, 8) * real[..., None], real)
                loss = F.cross_entropy(out, labels)
            else:
                ids = (torch.randint(1, V, (B, 17)) * real).long()
                loss = model(one=ids, two=torch.randint(1, V, (B, width)), labels=labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


@pytest.mark.parametrize(
    ("kind", "make", "width", "alarm"),
    [
        ("product", Patches, 0, True),
        ("filled", Patches, 0, False),
        ("mean of all", Pair, 9, True),
        ("mean of tokens", Pair, 9, False),
        ("mean of tokens", Pair, 17, False),  # the other sentence must not be cut
    ],
)
def test_padded_vectors_and_models_that_return_their_loss(
    kind: str, make: type[Patches | Pair], width: int, *, alarm: bool
) -> None:
    assert bool(found(other_inputs(kind, make, width), "HD513")) == alarm
