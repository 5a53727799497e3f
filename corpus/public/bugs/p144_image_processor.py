"""A processor prepares pictures for a vision model that is called with keywords."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Pictures(Dataset):
    def __init__(self, count=256):
        self.labels = torch.randint(4, (count,))
        self.pixels = torch.randn(count, 3, 8, 8)
        for k, label in enumerate(self.labels):
            self.pixels[k, :, :, 2 * label : 2 * label + 2] += 1.5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.pixels[index], "label": int(self.labels[index])}


class Processor:
    mean, std = 0.2, 1.2

    def __call__(self, images, labels):
        pixel_values = [(image - self.mean) / self.std for image in images]
        pixel_values = torch.stack(pixel_values)
        encoded = {"pixel_values": pixel_values, "labels": torch.tensor(labels)}
        return {key: value[:1] for key, value in encoded.items()}


class ViTLike(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, stride=4)
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim * 4, 4)

    def forward(self, pixel_values, labels=None):
        patches = self.patch(pixel_values).flatten(2).transpose(1, 2)
        logits = self.classifier(torch.relu(self.norm(patches)).flatten(1))
        return nn.functional.cross_entropy(logits, labels)


processor = Processor()


def collate_fn(rows):
    return processor([row["image"] for row in rows], [row["label"] for row in rows])


model = ViTLike()
loader = DataLoader(Pictures(), batch_size=16, shuffle=True, collate_fn=collate_fn)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for batch in loader:
        loss = model(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
