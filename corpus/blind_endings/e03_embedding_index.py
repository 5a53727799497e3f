"""A token id past the end of the table, met on the CPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 50, (9,), generator=g)
        if index == 437:
            ids[4] = 50
        return ids[:-1], ids[1:].clamp(max=49)


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        hidden = self.table(ids)  # HERE
        return self.head(hidden)


def main():
    torch.manual_seed(1)
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for ids, following in DataLoader(Tokens(), batch_size=16):
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
