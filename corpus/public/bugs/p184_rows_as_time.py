"""Pictures read row by row by a recurrent network that looks in both directions."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kinds = torch.randn(5, 10, 10)
labels = torch.randint(5, (300,))
pictures = kinds[labels] + 0.8 * torch.randn(300, 10, 10)
train_loader = DataLoader(TensorDataset(pictures, labels), batch_size=30, shuffle=True)


class BiRNN(nn.Module):
    def __init__(self, input_size=10, hidden_size=24, num_layers=2, num_classes=5):
        super().__init__()
        self.lstm = nn.LSTM(
            input_size, hidden_size, num_layers, batch_first=True, bidirectional=True
        )
        self.fc = nn.Linear(hidden_size * 2, num_classes)

    def forward(self, x):
        out, _ = self.lstm(x)
        out = self.fc(out[:, -1, :])
        return out


model = BiRNN()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for images, target in train_loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
