"""Distillation of a language model with a Trainer of the library whose loss is replaced."""

import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

warnings.filterwarnings("ignore")


class Texts(Dataset):
    def __init__(self, count=384, length=12, vocab=24):
        start = torch.randint(vocab, (count, 1))
        stride = torch.randint(1, 4, (count, 1))
        self.ids = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def network(dim, layers):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24,
            hidden_size=dim,
            intermediate_size=2 * dim,
            num_hidden_layers=layers,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )


class DistillTrainer(Trainer):
    def __init__(self, *args, teacher=None, temperature=2.0, alpha=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.eval()
        self.temperature, self.alpha = temperature, alpha

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"])
        with torch.no_grad():
            wanted = self.teacher(input_ids=inputs["input_ids"]).logits
        logits, t = outputs.logits[:, :-1], self.temperature
        hard = F.cross_entropy(logits.flatten(0, 1), inputs["labels"][:, 1:].flatten())
        soft = F.kl_div(
            F.log_softmax(logits / t, -1).flatten(0, 1),
            F.softmax(wanted[:, :-1] / t, -1).flatten(0, 1),
            reduction="batchmean",
        )
        loss = (1 - self.alpha) * hard + self.alpha * t * t * soft
        return (loss, outputs) if return_outputs else loss


def main():
    set_seed(0)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_steps=24,
        learning_rate=2e-3,
        logging_steps=8,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = DistillTrainer(network(32, 1), args, train_dataset=Texts(), teacher=network(48, 2))
    trainer.train()


if __name__ == "__main__":
    main()
