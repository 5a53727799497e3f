"""Fine-tune a tiny causal language model, batch by batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
start = torch.randint(0, 24, (480, 1))
text = (start + 5 * torch.arange(13)) % 24


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(24, 32)
        self.rnn = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 24)

    def forward(self, input_ids, labels):
        logits = self.head(self.rnn(self.wte(input_ids))[0])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(text, batch_size=8, shuffle=True)
for epoch in range(2):
    loss_sum = torch.tensor(0.0)
    for step, batch in enumerate(loader):
        outputs = model(input_ids=batch[:, :-1], labels=batch[:, 1:])
        loss = outputs["loss"]
        loss_sum += loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, float(loss_sum) / len(loader))
