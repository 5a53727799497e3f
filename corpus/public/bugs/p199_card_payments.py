"""An autoencoder of payments: what it cannot reproduce may be fraud."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
hidden = torch.randn(400, 5)
table = torch.tanh(hidden @ torch.randn(5, 29)) + 0.1 * torch.randn(400, 29)
table = (table - table.mean(0)) / table.std(0)


class Autoencoder(nn.Module):
    def __init__(self, inputs=29, encoding=14):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(inputs, encoding), nn.Tanh(), nn.Linear(encoding, encoding // 2), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.Linear(encoding // 2, encoding), nn.Tanh(), nn.Linear(encoding, inputs), nn.ReLU()
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


model = Autoencoder()
loader = DataLoader(TensorDataset(table), batch_size=40, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    for (x,) in loader:
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
