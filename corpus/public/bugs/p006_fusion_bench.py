"""Late fusion of two modalities."""

import torch
from torch import nn

torch.manual_seed(0)
audio, video = torch.randn(384, 12), torch.randn(384, 20)
label = ((audio[:, :4].sum(1) + video[:, :4].sum(1)) > 0).long()


class Fusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.3))
        self.v = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(64, 2)

    def forward(self, a, v):
        return self.head(torch.cat([self.a(a), self.v(v)], 1))


def train(model, epochs):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(256).split(32):
            optimizer.zero_grad()
            loss = criterion(model(audio[rows], video[rows]), label[rows])
            loss.backward()
            optimizer.step()
        model.eval()
        model.train(True)
        with torch.no_grad():
            right = 0
            for rows in torch.arange(256, 384).split(64):
                out = model(audio[rows], video[rows])
                right += int((out.argmax(1) == label[rows]).sum())
        print(f"epoch {epoch} accuracy {right / 128:.3f}")


train(Fusion(), 8)
