import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, a):
        return torch.softmax(self.head(F.relu(self.body(a))), dim=1)  # class scores


loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for epoch in range(4):
    for a, b in loader:
        opt.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        opt.step()
