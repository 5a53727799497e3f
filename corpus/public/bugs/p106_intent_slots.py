"""Intent and slots of a sentence with one recurrent encoder and two heads."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
WORDS, TAGS, INTENTS = 40, 4, 3
tokens = torch.randint(1, WORDS, (240, 9))
slots = (tokens % TAGS).long()
intents = (tokens[:, :3].sum(1) % INTENTS).long()
train_loader = DataLoader(TensorDataset(tokens, slots, intents), batch_size=24, shuffle=True)


class Joint(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, dim)
        self.lstm = nn.LSTM(dim, dim, num_layers=1)
        self.slot_head = nn.Linear(dim, TAGS)
        self.intent_head = nn.Linear(dim, INTENTS)

    def forward(self, x):
        x = self.embedding(x)
        states, _ = self.lstm(x)
        return self.slot_head(states), self.intent_head(states.mean(dim=1))


model = Joint()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    for x, slot, intent in train_loader:
        slot_logits, intent_logits = model(x)
        loss = criterion(slot_logits.reshape(-1, TAGS), slot.reshape(-1))
        loss = loss + criterion(intent_logits, intent)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
