"""Reviews with a small BERT of the library."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)


def tokenize(count=160):
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, 18, (1,)))
        ids = torch.randint(5, 40, (length,))
        label = int((ids[1:4] > 22).sum() >= 2)
        rows.append({"input_ids": ids, "label": label})
    return rows


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for k, row in enumerate(rows):
        ids[k, : len(row["input_ids"])] = row["input_ids"]
        mask[k, : len(row["input_ids"])] = 1
    labels = torch.tensor([row["label"] for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


config = BertConfig(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    pad_token_id=0,
)
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_dataloader = DataLoader(tokenize(), batch_size=16, shuffle=True, collate_fn=collate)
model.train()
for epoch in range(3):
    for batch in train_dataloader:
        outputs = model(input_ids=batch["input_ids"], labels=batch["labels"])
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
