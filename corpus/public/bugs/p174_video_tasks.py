"""Classification of clip features; the rate follows the validation accuracy."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
label = torch.randint(5, (400,))
clips = torch.randn(400, 12, 16)
clips += 0.4 * torch.randn(5, 1, 16)[label]
train_set, val_set = random_split(TensorDataset(clips, label), [320, 80])


class ClipModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.mix(x)[0].mean(1))


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


model = ClipModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=1)
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
val_loader = DataLoader(val_set, batch_size=80)
for epoch in range(16):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    val_acc = accuracy(model, val_loader)
    scheduler.step(val_acc)
    print(epoch, f"{val_acc:.2f}", optimizer.param_groups[0]["lr"])
