"""A transformer encoder that continues sine waves."""

import torch
from torch import nn

torch.manual_seed(42)


def make_sequences(count, length):
    t = torch.arange(length + 1).float()
    phase = 6.28 * torch.rand(count, 1)
    speed = 0.2 + 0.4 * torch.rand(count, 1)
    waves = torch.sin(t * speed + phase)
    return waves[:, :-1, None], waves[:, -1:]


X, y = make_sequences(256, 16)


class TransformerModel(nn.Module):
    def __init__(self, input_dim=1, embed_dim=32, num_heads=4, num_layers=2):
        super().__init__()
        self.embedding = nn.Linear(input_dim, embed_dim)
        self.position = nn.Parameter(0.1 * torch.randn(1, 16, embed_dim))
        layer = nn.TransformerEncoderLayer(embed_dim, num_heads, 64, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.output_layer = nn.Linear(embed_dim, 1)

    def forward(self, x):
        x = self.embedding(x) + self.position
        x = self.encoder(x)
        return self.output_layer(x[:, -1])


model = TransformerModel()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for k in range(0, len(X), 32):
        predictions = model(X[k : k + 32])
        loss = criterion(predictions, y[k : k + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Epoch {epoch}, Loss: {loss.item():.4f}")
