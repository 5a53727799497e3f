"""Reviews of different length, encoded by convolutions."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
WORDS, PAD = 50, 0


def reviews(count=240):
    rows = []
    for _ in range(count):
        mood = int(torch.randint(2, (1,)))
        words = torch.randint(10, WORDS, (int(torch.randint(4, 15, (1,))),))
        for _ in range(2):
            at = int(torch.randint(len(words), (1,)))
            words[at] = int(torch.randint(1, 5, (1,))) + 5 * mood
        rows.append((words, mood))
    return rows


def collate(rows):
    words, moods = zip(*rows)
    return pad_sequence(words, batch_first=True, padding_value=PAD), torch.tensor(moods)


class CnnEncoder(nn.Module):
    def __init__(self, dim=24, filters=24, sizes=(2, 3)):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, filters, size) for size in sizes)

    def forward(self, tokens, mask):
        tokens = (tokens * mask.unsqueeze(-1)).transpose(1, 2)
        outputs = []
        for convolution in self.convolutions:
            outputs.append(torch.tanh(convolution(tokens)).max(dim=2)[0])
        return torch.cat(outputs, dim=1)


class Classifier(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.encoder, self.out = CnnEncoder(dim), nn.Linear(48, 2)

    def forward(self, words):
        return self.out(self.encoder(self.embed(words), (words != PAD).float()))


model = Classifier()
loader = DataLoader(reviews(), batch_size=24, shuffle=True, collate_fn=collate)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    for words, moods in loader:
        loss = nn.functional.cross_entropy(model(words), moods)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
