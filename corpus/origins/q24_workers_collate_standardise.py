"""Loop: loader with two workers and a collate function.

Fault: division by a spread of 0, before the step; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        wave = torch.sin(torch.arange(16.0) * (1 + index % 5))
        return wave * (index != 19), float(index % 5)


def collate(items):
    waves = torch.stack([wave for wave, _ in items])
    spread = waves.std(dim=1, keepdim=True)
    waves = (waves - waves.mean(dim=1, keepdim=True)) / spread  # <- origin
    return {"wave": waves, "pitch": torch.tensor([pitch for _, pitch in items])}


if __name__ == "__main__":
    torch.manual_seed(124)
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(56, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(Waves(), batch_size=8, num_workers=2, collate_fn=collate)
    for batch in loader:
        out = net(batch["wave"][:, None])[:, 0]
        loss = nn.functional.mse_loss(out, batch["pitch"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
