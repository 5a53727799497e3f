"""Train a small causal language model from scratch with the Hugging Face Trainer.

A character tokeniser is built from the corpus, the text is cut into blocks, and a small GPT-2
or Llama is made from a config. Evaluation runs at fixed intervals and perplexity is reported at
the end. Nothing is downloaded: without --train-file a corpus is generated from a small grammar.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

logger = logging.getLogger("causal_lm")

SUBJECTS = ["the keeper", "a sailor", "the captain", "my sister", "an old man", "the pilot"]
VERBS = ["watches", "remembers", "draws", "mends", "follows", "names"]
OBJECTS = ["the lamp", "a chart", "the tide", "her boat", "the rope", "every star"]
ENDINGS = ["at night", "before the storm", "in silence", "by the quay", "again and again"]


@dataclass
class CharTokenizer:
    """Maps characters to ids; the first ids are kept for special tokens."""

    stoi: dict[str, int] = field(default_factory=dict)
    specials: tuple[str, ...] = ("<pad>", "<bos>", "<eos>", "<unk>")

    @classmethod
    def train(cls, text: str) -> CharTokenizer:
        tokenizer = cls()
        for token in [*tokenizer.specials, *sorted(set(text))]:
            tokenizer.stoi[token] = len(tokenizer.stoi)
        return tokenizer

    def __len__(self) -> int:
        return len(self.stoi)

    @property
    def bos_id(self) -> int:
        return self.stoi["<bos>"]

    @property
    def eos_id(self) -> int:
        return self.stoi["<eos>"]

    def encode(self, text: str) -> list[int]:
        unknown = self.stoi["<unk>"]
        return [self.stoi.get(ch, unknown) for ch in text]

    def decode(self, ids: list[int]) -> str:
        itos = {i: s for s, i in self.stoi.items()}
        return "".join(itos[i] for i in ids if itos[i] not in self.specials)


class BlockDataset(Dataset):
    """Consecutive blocks of a long token sequence."""

    def __init__(self, ids: list[int], block_size: int):
        usable = (len(ids) // block_size) * block_size
        self.blocks = torch.tensor(ids[:usable]).view(-1, block_size)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block = self.blocks[index]
        return {"input_ids": block, "labels": block.clone()}


def generate_corpus(sentences: int) -> str:
    lines = []
    for _ in range(sentences):
        words = (random.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDINGS))
        lines.append(" ".join(words) + ".")
    return "\n".join(lines)


def load_text(args: argparse.Namespace) -> str:
    if args.train_file:
        return Path(args.train_file).read_text(encoding="utf-8")
    return generate_corpus(args.sentences)


def build_model(args: argparse.Namespace, tokenizer: CharTokenizer) -> PreTrainedModel:
    special = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.stoi["<pad>"],
    }
    if args.architecture == "llama":
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=args.hidden_size,
            intermediate_size=2 * args.hidden_size,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.heads,
            max_position_embeddings=args.block_size,
            use_cache=False,
            **special,
        )
        return LlamaForCausalLM(config)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=args.block_size,
        n_embd=args.hidden_size,
        n_layer=args.layers,
        n_head=args.heads,
        use_cache=False,
        **special,
    )
    return GPT2LMHeadModel(config)


@torch.no_grad()
def complete(model: PreTrainedModel, tokenizer: CharTokenizer, prompt: str, length: int) -> str:
    """Greedy continuation of a prompt."""
    model.eval()
    ids = torch.tensor([tokenizer.encode(prompt)])
    for _ in range(length):
        logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
    return tokenizer.decode(ids[0].tolist())


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architecture", choices=["gpt2", "llama"], default="llama")
    parser.add_argument("--train-file", default=None)
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=150)
    parser.add_argument("--warmup-steps", type=int, default=15)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--eval-share", type=float, default=0.05)
    parser.add_argument("--eval-steps", type=int, default=50)
    parser.add_argument("--output-dir", default=None)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_known_args()[0]


def main() -> None:
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    random.seed(args.seed)
    np.random.seed(args.seed)
    set_seed(args.seed)

    text = load_text(args)
    tokenizer = CharTokenizer.train(text)
    ids = tokenizer.encode(text)
    cut = int(len(ids) * (1 - args.eval_share))
    train_set = BlockDataset(ids[:cut], args.block_size)
    eval_set = BlockDataset(ids[cut:], args.block_size)
    logger.info("%d training blocks, %d evaluation blocks", len(train_set), len(eval_set))

    model = build_model(args, tokenizer)
    logger.info("%s with %d parameters", args.architecture, model.num_parameters())

    with tempfile.TemporaryDirectory() as scratch:
        training_args = TrainingArguments(
            output_dir=args.output_dir or scratch,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulation,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            lr_scheduler_type="cosine",
            warmup_steps=args.warmup_steps,
            max_grad_norm=1.0,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=args.eval_steps,
            save_strategy="steps" if args.output_dir else "no",
            save_steps=args.eval_steps,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=args.seed,
        )
        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=train_set,
            eval_dataset=eval_set,
        )
        trainer.train()
        metrics = trainer.evaluate()

    logger.info("perplexity %.3f", math.exp(metrics["eval_loss"]))
    logger.info("sample: %r", complete(model, tokenizer, "the keeper ", 40))


if __name__ == "__main__":
    main()
