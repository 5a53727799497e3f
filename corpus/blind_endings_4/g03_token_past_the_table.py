"""CUDA: one token id equals the size of the vocabulary."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.cuda.set_per_process_memory_fraction(0.02)
VOCABULARY = 211


class Texts(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, VOCABULARY, (12,), generator=generator)
        if index == 437:
            ids[7] = VOCABULARY
        return ids, int(ids[0] > 100)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        vectors = self.table(ids)  # HERE
        return self.head(vectors.mean(1))


def main():
    torch.manual_seed(0)
    model = Bag().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for ids, labels in DataLoader(Texts(), batch_size=16):
        ids, labels = ids.cuda(), labels.cuda()
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
