"""torch.compile with the eager backend; the hidden state has the size of a full batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 24)
        self.update = nn.Linear(24, 24)
        self.head = nn.Linear(24, 1)
        self.register_buffer("start", torch.zeros(BATCH, 24))

    def forward(self, x):
        state = self.start
        for position in range(x.shape[1]):
            state = torch.tanh(self.inner(x[:, position]) + self.update(state))  # HERE
        return self.head(state)


torch.manual_seed(0)
x = torch.randn(330, 4, 6)
y = x[:, -1].sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
net = Recurrent()
model = torch.compile(net, backend="eager")
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
