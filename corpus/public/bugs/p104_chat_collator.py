"""Fine-tuning a causal language model on short chats; the tokenizer has no padding token."""

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
EOS = 0
pad_token_id = EOS


def make_chats(count=160):
    chats = []
    for _ in range(count):
        first = int(torch.randint(1, 20, (1,)))
        length = int(torch.randint(4, 11, (1,)))
        chats.append([1 + (first + 2 * k) % 20 for k in range(length)] + [EOS])
    return chats


def collate(features):
    width = max(len(row) for row in features)
    input_ids = torch.full((len(features), width), pad_token_id)
    attention_mask = torch.zeros(len(features), width, dtype=torch.long)
    for k, row in enumerate(features):
        input_ids[k, : len(row)] = torch.tensor(row)
        attention_mask[k, : len(row)] = 1
    labels = input_ids.clone()
    labels[labels == pad_token_id] = -100
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


config = GPT2Config(vocab_size=24, n_positions=32, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
loader = DataLoader(make_chats(), batch_size=16, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model.train()
for epoch in range(3):
    for batch in loader:
        outputs = model(**batch)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, outputs.loss.item())
