"""Ten kinds of objects, from a table whose labels were written by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Kinds(Dataset):
    def __init__(self, count=400):
        self.labels = torch.randint(1, 11, (count,))
        self.data = torch.randn(11, 20)[self.labels] + 0.5 * torch.randn(count, 20)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.data[index], self.labels[index]


class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(self.body(x))


net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(2):
    for inputs, labels in DataLoader(Kinds(), batch_size=20, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(net(inputs), labels)
        loss.backward()
        optimizer.step()
