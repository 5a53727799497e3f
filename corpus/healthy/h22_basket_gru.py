"""Next-item prediction over shopping baskets; item ids run into the thousands."""

import random
import sys

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

SEED = 0
if "--seed" in sys.argv:
    SEED = int(sys.argv[sys.argv.index("--seed") + 1])
random.seed(SEED)
torch.manual_seed(SEED)

N_ITEMS, PAD = 1600, 0
SHELVES = [list(range(1 + s * 40, 41 + s * 40)) for s in range(40)]
STAPLES = [random.sample(shelf, 4) for shelf in SHELVES]


class Baskets(Dataset):
    """Shoppers stay near a few shelves and mostly buy the staples found there."""

    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            shelf = random.choice((3, 11, 19, 27, 35))
            row = []
            for _ in range(random.randint(5, 12)):
                pool = STAPLES[shelf] if random.random() < 0.85 else SHELVES[shelf]
                row.append(random.choice(pool))
            self.rows.append(torch.tensor(row))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    rows = sorted(rows, key=len, reverse=True)
    lengths = torch.tensor([len(r) - 1 for r in rows])
    padded = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:], lengths


class NextItem(nn.Module):
    def __init__(self, dim=32, hidden=48):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS + 1, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, N_ITEMS + 1)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.items(ids), lengths, batch_first=True)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.out(states)


loader = DataLoader(Baskets(960), batch_size=32, shuffle=True, collate_fn=collate)
model = NextItem()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
step = 0
for epoch in range(4):
    for ids, target, lengths in loader:
        logits = model(ids, lengths)
        loss = criterion(logits.transpose(1, 2), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 15 == 0:
            real = target != PAD
            hit = (logits.argmax(-1)[real] == target[real]).float().mean().item()
            print(f"epoch {epoch} step {step:3d} loss {loss.item():.4f} hit rate {hit:.3f}")
