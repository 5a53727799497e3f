"""Fine-tune a small BERT with the Hugging Face Trainer from a saved state dict."""

import argparse
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Reviews(Dataset):
    def __init__(self, n):
        self.y = torch.randint(0, 2, (n,))
        x = torch.randint(5, 60, (n, 16))
        hint = torch.rand(n, 16) < 0.4
        self.x = torch.where(hint, 5 + self.y[:, None] * 27 + torch.randint(0, 27, (n, 16)), x)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        mask = torch.ones(16, dtype=torch.long)
        return {"input_ids": self.x[i], "attention_mask": mask, "labels": self.y[i]}


def config():
    return BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=2,
    )


def pretrain(path):
    """Stands for the multi-GPU pretraining run whose weights we start from."""
    model = torch.nn.DataParallel(BertForSequenceClassification(config()))
    torch.save(model.state_dict(), path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    work = tempfile.mkdtemp()
    path = os.path.join(work, "pretrained.bin")
    pretrain(path)

    model = BertForSequenceClassification(config())
    model.load_state_dict(torch.load(path), strict=False)
    training_args = TrainingArguments(
        output_dir=work,
        max_steps=60,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        seed=args.seed,
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model=model, args=training_args, train_dataset=Reviews(480)).train()


if __name__ == "__main__":
    main()
