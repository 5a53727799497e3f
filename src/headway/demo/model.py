"""A small character-level transformer, and its loss, which contains a planted fault."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from headway.demo.alice_dataset import LENGTH, PAD, Batch


class CharacterModel(nn.Module):
    """Predicts the next character from those before it."""

    def __init__(self, characters: int, *, width: int = 80, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters + 1, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width,
            nhead=4,
            dim_feedforward=4 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters + 1)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1])
        later = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.characters(text) + self.positions(places)
        hidden = self.blocks(hidden, mask=later, is_causal=True)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean over a sample's characters, then over the samples, so that all weigh the same."""
    logits = model(batch.text)
    per_character = F.cross_entropy(logits.transpose(1, 2), batch.target, reduction="none")
    real = (batch.target != PAD).float()
    # The planted fault: a sample without a single real character divides 0 by 0.
    per_sample = (per_character * real).sum(dim=1) / real.sum(dim=1)
    return per_sample.mean()
