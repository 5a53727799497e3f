"""The data, the model and the two-term loss of the example: small enough for two CPU cores.

A sentence is 12 words about one of eight topics, and comes with the latent an encoder made of it:
32 numbers, written down once, before the training. The transformer sees the words with some of them
masked and the latent with noise on it, in one sequence, and is to say which words were masked and
what the noise was.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, TOPICS, LENGTH, LATENT = 64, 8, 12, 32
MASK = WORDS
"""The token id of a masked word."""

Batch = tuple[Tensor, Tensor]


def make_data(samples: int, seed: int) -> Batch:
    """Sentences, and their latents from an encoder, which are not scaled."""
    random = torch.Generator().manual_seed(seed)
    world = torch.Generator().manual_seed(1)  # the same for training and held-out samples
    usual = torch.randn(TOPICS, WORDS, generator=world).mul(3).softmax(-1)
    meaning = torch.randn(TOPICS, LATENT, generator=world) * 60
    shade = torch.randn(WORDS, LATENT, generator=world) * 30
    topic = torch.randint(TOPICS, (samples,), generator=random)
    words = torch.multinomial(usual[topic], LENGTH, replacement=True, generator=random)
    latents = meaning[topic] + shade[words].mean(dim=1)
    return words, latents


class MMDiT(nn.Module):
    """Words and latent in one sequence, with the noise level of each as input."""

    def __init__(self, dim: int = 48, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, dim)
        self.places = nn.Parameter(torch.randn(LENGTH + 1, dim) * 0.02)
        self.latent_in = nn.Linear(LATENT, dim)
        self.times = nn.Linear(2, dim)
        block = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.text_out = nn.Linear(dim, WORDS)
        self.latent_out = nn.Linear(dim, LATENT)

    def forward(self, words: Tensor, latents: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([self.words(words), self.latent_in(latents).unsqueeze(1)], dim=1)
        tokens = tokens + self.places + self.times(times).unsqueeze(1)
        hidden = self.norm(self.blocks(tokens))
        return self.text_out(hidden[:, :-1]), self.latent_out(hidden[:, -1])


def two_losses(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The masked-text term and the latent-diffusion term, each a mean."""
    words, latents = batch
    dtype = next(model.parameters()).dtype
    share = torch.rand(len(words), 1) * 0.8 + 0.1
    masked = torch.rand(words.shape) < share
    noise = torch.randn(latents.shape)
    angle = torch.rand(len(words), 1) * (torch.pi / 2)
    noisy = angle.cos() * latents + angle.sin() * noise
    times = torch.cat([share, angle], dim=1)

    text, guess = model(words.masked_fill(masked, MASK), noisy.to(dtype), times.to(dtype))
    per_word = F.cross_entropy(text.float().flatten(0, 1), words.flatten(), reduction="none")
    text_loss = (per_word * masked.flatten()).sum() / masked.sum().clamp(min=1)
    latent_loss = F.mse_loss(guess.float(), noise)
    return text_loss, latent_loss
