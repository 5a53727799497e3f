"""accelerate: a sequence is longer than the table of positions."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

LONGEST = 24


class Sequences(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(11)
        self.rows = [
            torch.randint(0, 40, (int(n),), generator=generator)
            for n in torch.randint(8, LONGEST + 1, (size,), generator=generator)
        ]
        self.rows[333] = torch.randint(0, 40, (31,), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return row, (row[0] >= 20).long()


def collate(batch):
    rows, labels = zip(*batch, strict=True)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.stack(labels)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 32)
        self.positions = nn.Embedding(LONGEST, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        where = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.tokens(ids) + self.positions(where)  # HERE
        return self.head(self.layer(hidden)[:, 0])


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Sequences(480), batch_size=12, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        for ids, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(ids), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(epoch, loss.item())


if __name__ == "__main__":
    main()
