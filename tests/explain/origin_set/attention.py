"""Transformers: masks of every make, and what goes wrong beside and because of them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE, LENGTH, WIDTH, WORDS = 8, 5, 6, 10
NEVER = float("-inf")


def tokens(seed: int, padded: bool = True) -> Batch:
    g = draw(seed)
    lengths = torch.randint(2, LENGTH + 1, (SIZE,), generator=g) if padded else LENGTH
    return {
        "words": torch.randint(1, WORDS - 1, (SIZE, LENGTH), generator=g),
        "pad": torch.arange(LENGTH).expand(SIZE, LENGTH) >= torch.as_tensor(lengths).view(-1, 1),
        "target": torch.randint(1, WORDS - 1, (SIZE,), generator=g),
    }


class Attention(nn.Module):
    """Causal, with a registered mask, and padding on top."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        later = torch.ones(LENGTH, LENGTH).triu(1).bool()
        self.register_buffer("causal", torch.zeros(LENGTH, LENGTH).masked_fill(later, NEVER))

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return q @ k.transpose(1, 2) / math.sqrt(WIDTH) + self.causal, v

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        scores, v = self.scores(x)
        scores = scores.masked_fill(pad[:, None, :], NEVER)
        weights = torch.softmax(scores, dim=-1)  # born: fully-padded
        return weights @ v


class Model(nn.Module):
    """Token embedding, one block, one head."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.attn = attn
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, pad: Tensor) -> Tensor:
        x = self.embed(words)
        return self.head((x + self.attn(x, pad)).mean(1))


def predict(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["words"], batch["pad"]), batch["target"])


def fully_padded() -> Case:
    bad = tokens(3)
    bad["pad"][3] = True
    return Case(Model(Attention()), (tokens(1), tokens(2)), bad, predict)


# A mask made by multiplying with infinity.


class MultipliedMask(Attention):
    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        scores, v = self.scores(x)
        if pad.any():
            scores = scores + pad[:, None, :].to(x.dtype) * NEVER  # born: mask-times-infinity
        return torch.softmax(scores, dim=-1) @ v


def mask_times_infinity() -> Case:
    healthy = (tokens(1, padded=False), tokens(2, padded=False))
    return Case(Model(MultipliedMask()), healthy, tokens(3), predict)


# A softmax by hand, that takes the maximum off first.


class OwnSoftmax(Attention):
    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        scores, v = self.scores(x)
        scores = scores.masked_fill(pad[:, None, :], NEVER)
        shifted = scores - scores.amax(-1, keepdim=True)  # born: softmax-by-hand
        weights = shifted.exp()
        return weights / weights.sum(-1, keepdim=True) @ v


def softmax_by_hand() -> Case:
    bad = tokens(3)
    bad["pad"][6] = True
    return Case(Model(OwnSoftmax()), (tokens(1), tokens(2)), bad, predict)


# torch's own attention module, with a sample of padding only.


class TorchAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        out, _ = self.inner(x, x, x, key_padding_mask=pad)  # born: key-padding-only
        return out


def key_padding_only() -> Case:
    bad = tokens(3)
    bad["pad"][1] = True
    return Case(Model(TorchAttention()), (tokens(1), tokens(2)), bad, predict)


# A learned temperature that has arrived at 0.


class Tempered(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / self.temperature  # born: temperature-zero
        scores = (scores + self.causal).masked_fill(pad[:, None, :], NEVER)
        return torch.softmax(scores, dim=-1) @ v


def temperature_zero() -> Case:
    attn = Tempered()

    def repair() -> None:
        nn.init.ones_(attn.temperature)

    return Case(Model(attn), (), tokens(3), predict, repair)


# A causal mask that was multiplied together when the model was built.


class BrokenMask(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("causal", torch.ones(LENGTH, LENGTH).triu(1) * NEVER)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / math.sqrt(WIDTH)
        scores = scores + self.causal  # born: mask-buffer-of-nan
        return torch.softmax(scores.masked_fill(pad[:, None, :], NEVER), dim=-1) @ v


def mask_buffer_of_nan() -> Case:
    attn = BrokenMask()

    def repair() -> None:
        attn.causal.nan_to_num_(0.0, 0.0, NEVER)

    return Case(Model(attn), (), tokens(3), predict, repair)


# Fused attention with a float mask, and a sample of absurd size.


class Fused(Attention):
    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        hidden = torch.zeros(pad.shape, dtype=q.dtype, device=x.device).masked_fill(pad, NEVER)
        mask = self.causal.to(q.dtype) + hidden[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # born: fused-scores
        return out.squeeze(1)


class Scaled(nn.Module):
    """Reads numbers, and not words."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn = attn
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        return self.head(self.attn(x, pad).mean(1))


def readings(seed: int) -> Batch:
    batch = tokens(seed)
    return {**batch, "words": torch.randn(SIZE, LENGTH, WIDTH, generator=draw(seed))}


def fused_scores() -> Case:
    bad = readings(3)
    bad["words"][2] *= 1e21
    bad["pad"][2] = False
    return Case(Scaled(Fused()), (readings(1), readings(2)), bad, predict)


# A layer norm without an epsilon, and padding tokens that are all zeros.


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.norm = nn.LayerNorm(WIDTH, eps=0.0)
        self.attn = Attention()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, pad: Tensor) -> Tensor:
        x = self.norm(self.embed(words))  # born: norm-of-padding
        return self.head((x + self.attn(x, pad)).mean(1))


def norm_of_padding() -> Case:
    bad = tokens(3)
    bad["words"][5, 4] = 0
    return Case(Normed(), (tokens(1), tokens(2)), bad, predict)


# The entropy of attention, where a mask has made probabilities 0.


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, pad: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.embed(words)).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2)).float().masked_fill(pad[:, None, :], NEVER)
        weights = torch.softmax(scores, dim=-1)
        return self.head((weights.to(v.dtype) @ v).mean(1)), weights


def sharp_attention(model: nn.Module, batch: Batch) -> Tensor:
    logits, weights = model(batch["words"], batch["pad"])
    entropy = -(weights * torch.log(weights)).sum(-1).mean()  # born: entropy-of-masked
    return F.cross_entropy(logits, batch["target"]) + 0.1 * entropy


def entropy_of_masked() -> Case:
    bad = tokens(3, padded=False)
    bad["pad"][0, 3:] = True
    bad["pad"][4, 4:] = True
    healthy = (tokens(1, padded=False), tokens(2, padded=False))
    return Case(Encoder(), healthy, bad, sharp_attention)


# Targets among what is masked out.


def allowed_words(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["words"], batch["pad"])
    forbidden = torch.zeros(WORDS, dtype=torch.bool, device=logits.device)
    forbidden[[0, WORDS - 1]] = True
    logits = logits.masked_fill(forbidden, NEVER)
    return F.cross_entropy(logits, batch["target"])  # born: forbidden-word


def forbidden_word() -> Case:
    bad = tokens(3)
    bad["target"][2] = WORDS - 1
    return Case(Model(Attention()), (tokens(1), tokens(2)), bad, allowed_words)


def moves(seed: int) -> Batch:
    batch = tokens(seed)
    legal = torch.rand(SIZE, WORDS, generator=draw(seed)) > 0.3
    legal[torch.arange(SIZE), batch["target"]] = True
    return {**batch, "legal": legal}


def policy(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["words"], batch["pad"])
    log_p = F.log_softmax(logits.masked_fill(~batch["legal"], NEVER), dim=-1)
    taken = log_p.gather(1, batch["target"][:, None])  # born: illegal-move
    return -taken.mean()


def illegal_move() -> Case:
    bad = moves(3)
    bad["legal"][1, bad["target"][1]] = False
    return Case(Model(Attention()), (moves(1), moves(2)), bad, policy)


_FP16_INPUT = {"float16": "the input itself is past 65504: the cast would be the origin"}

SCENARIOS = (
    Scenario(
        "fully-padded",
        fully_padded,
        "masked-softmax-row",
        "softmax",
        "attn",
        rows=(3,),
        decoy=True,
    ),
    Scenario(
        "mask-times-infinity",
        mask_times_infinity,
        "zero-times-infinity",
        "mul",
        "attn",
        decoy=True,
    ),
    Scenario(
        "softmax-by-hand",
        softmax_by_hand,
        "infinity-minus-infinity",
        "sub",
        "attn",
        rows=(6,),
        decoy=True,
    ),
    Scenario(
        "key-padding-only",
        key_padding_only,
        "masked-softmax-row",
        "softmax",
        "attn.inner",
        rows=(1,),
    ),
    Scenario("temperature-zero", temperature_zero, "division-by-zero", "div", "attn", decoy=True),
    Scenario(
        "mask-buffer-of-nan", mask_buffer_of_nan, "poisoned-buffer", "add", "attn", decoy=True
    ),
    Scenario(
        "fused-scores",
        fused_scores,
        "overflow",
        "scaled_dot_product_attention",
        "attn",
        rows=(2,),
        decoy=True,
        excluded=_FP16_INPUT,
    ),
    Scenario(
        "norm-of-padding",
        norm_of_padding,
        "std-singular",
        "layer_norm",
        "norm",
        rows=(5,),
        decoy=True,
    ),
    Scenario("entropy-of-masked", entropy_of_masked, "log-of-zero", "log", rows=(0, 4), decoy=True),
    Scenario(
        "forbidden-word",
        forbidden_word,
        "masked-target",
        ("nll_loss", "cross_entropy"),
        rows=(2,),
        decoy=True,
    ),
    Scenario("illegal-move", illegal_move, "masked-target", "gather", rows=(1,), decoy=True),
)
