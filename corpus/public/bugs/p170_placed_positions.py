"""A vision transformer whose positions and class token are parameters."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.before(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.between(x))


class VisionTransformer(nn.Module):
    def __init__(self, patches=16, dim=32, classes=4, device="cpu"):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, dim)).to(device) * 0.1
        self.layers = nn.Sequential(Layer(dim), Layer(dim))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


torch.manual_seed(0)
labels = torch.randint(4, (320,))
images = 0.3 * torch.randn(320, 1, 8, 8)
for k, label in enumerate(labels.tolist()):
    images[k, 0, 4 * (label // 2) :, 4 * (label % 2) : 4 * (label % 2) + 4] += 1.0
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
model = VisionTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
