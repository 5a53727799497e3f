"""Tell the kind of an order from a sequence of symbols of varying length."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
sequences = [torch.randint(1, 9, (int(n),)) for n in torch.randint(4, 16, (320,))]
kinds = torch.tensor([int(s[-1] > 4) for s in sequences])


def collate(rows):
    batch = [sequences[row] for row in rows]
    lengths = torch.tensor([len(s) for s in batch])
    return pad_sequence(batch, batch_first=True), lengths, kinds[rows]


class Order(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.linear = nn.Linear(32, 2)

    def forward(self, ids, lengths):
        output, _ = self.rnn(self.embed(ids))
        last = output[:, -1]
        return self.linear(last)


model = Order()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(5):
    for ids, lengths, kind in DataLoader(range(320), 32, shuffle=True, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(ids, lengths), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
