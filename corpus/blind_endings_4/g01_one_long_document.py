"""CUDA: one document is eight times as long as the others, and attention is quadratic."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2)  # HERE
        return torch.softmax(scores, -1) @ v  # HERE


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.attention = Attention(64)
        self.head = nn.Linear(64, 5)

    def forward(self, tokens):
        return self.head(self.attention(self.embedding(tokens)))


def main():
    torch.manual_seed(0)
    model = Tagger().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(80):
        length = 1024 if step != 50 else 8192
        tokens = torch.randint(0, 500, (8, length)).cuda()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten() % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
