"""A transformer of 44 million parameters, 6 + 6 layers of width 512, learns to copy sequences."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 100


class Copier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 512)
        self.body = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.head = nn.Linear(512, VOCABULARY)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.body(self.embedding(source), self.embedding(target), tgt_mask=mask)
        return self.head(hidden)


def main() -> None:
    torch.manual_seed(0)
    model = Copier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(20):
        source = torch.randint(1, VOCABULARY, (8, 16))
        logits = model(source, source.roll(1, dims=1))
        loss = F.cross_entropy(logits.flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


if __name__ == "__main__":
    main()
