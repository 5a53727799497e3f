"""Chunks of one long text for a causal model of the library."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
text = [0]
for _ in range(3000):
    text.append((text[-1] * 3 + 1 + int(torch.rand(1) < 0.1)) % 23)
text = torch.tensor(text)


class Chunks(Dataset):
    def __init__(self, ids, block_size):
        self.ids, self.block_size = ids, block_size

    def __len__(self):
        return (len(self.ids) - 1) // self.block_size

    def __getitem__(self, index):
        begin = index * self.block_size
        chunk = self.ids[begin : begin + self.block_size + 1]
        return {"input_ids": chunk[:-1], "labels": chunk[1:]}


def main():
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Chunks(text, 16), batch_size=16, shuffle=True)
    for epoch in range(2):
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


main()
