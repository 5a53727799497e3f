"""Loop: for over a range, with get_batch and a training loop in main.

Fault: an attention row that is masked completely, in the forward pass; ops: softmax.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(414)
VOCABULARY, BLOCK, BATCH = 17, 8, 6
documents = torch.randint(1, VOCABULARY, (40, BLOCK + 1))
documents[:, 7:] = 0
documents[15, :] = 0


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(padding[:, None, :], -math.inf)
        attention = F.softmax(scores, dim=-1)  # <- origin
        return x + self.out(attention @ v)


class Reader(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.attention = Attention(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.attention(self.embedding(tokens), tokens == 0)
        return self.head(x)


def get_batch(step):
    rows = documents[(step * BATCH) % 36 : (step * BATCH) % 36 + BATCH]
    return rows[:, :-1], rows[:, 1:]


def main():
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(6):
        tokens, targets = get_batch(step)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


main()
