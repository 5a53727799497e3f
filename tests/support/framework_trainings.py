"""Small trainings in the loops of other packages, for `make test-frameworks`.

    python framework_trainings.py NAME [bad]

Models are made from configurations and data from lists; nothing is downloaded. `bad` makes one step
bad. At the end a checksum of the weights is printed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn

BAD = "bad" in sys.argv[2:]
BAD_STEP = 3
SENTENCES = ["the cat sat on a mat and then it slept", "the dog ran on a log"] * 8
WORDS = [*sorted(set(" ".join(SENTENCES).split())), "<pad>", "<eos>", "<unk>", "<bos>"]
PAD, EOS, BOS = (WORDS.index(word) for word in ("<pad>", "<eos>", "<bos>"))
SETTINGS: dict[str, Any] = {
    "max_steps": 8,
    "per_device_train_batch_size": 2,
    "report_to": [],
    "use_cpu": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "seed": 1,
    "disable_tqdm": True,
    "learning_rate": 1e-3,
}

# The torchvision of PyPI is built for CUDA. Beside a torch for the CPU its operators are missing,
# and without them it cannot be imported.
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def spoil(loss: torch.Tensor, step: int) -> torch.Tensor:
    """The loss as it is; in the bad step, one with a gradient of NaN."""
    if BAD and step == BAD_STEP:
        return (loss - loss.detach()).sqrt() * 0  # the bad line
    return loss


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    whole = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "unk", "bos")}
    return PreTrainedTokenizerFast(tokenizer_object=whole, **special)


def make_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS}
    config = LlamaConfig(
        vocab_size=len(WORDS), num_attention_heads=2, max_position_embeddings=64, **shape, **ids
    )
    return LlamaForCausalLM(config)


def spoiled(trainer: type) -> Any:
    """A subclass of a Trainer, with a loss of its own."""

    class Trainer(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return spoil(super().compute_loss(*args, **kwargs), self.state.global_step)

    return Trainer


def train_sft(folder: str) -> nn.Module:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    trainer = spoiled(SFTTrainer)(
        make_llama(),
        SFTConfig(output_dir=folder, bf16=False, **SETTINGS),
        train_dataset=Dataset.from_dict({"text": SENTENCES}),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return trainer.model


def train_dpo(folder: str) -> nn.Module:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = {"prompt": ["the cat", "the dog"] * 8, "chosen": [" sat on a mat", " slept"] * 8}
    trainer = spoiled(DPOTrainer)(
        make_llama(),
        ref_model=make_llama(),
        args=DPOConfig(output_dir=folder, bf16=False, **SETTINGS),
        train_dataset=Dataset.from_dict({**rows, "rejected": [" ran", " sat on a log"] * 8}),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return trainer.model


def train_grpo(folder: str) -> nn.Module:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = {**SETTINGS, "per_device_train_batch_size": 4}
    config = GRPOConfig(
        output_dir=folder, bf16=False, num_generations=4, max_completion_length=6, **settings
    )
    trainer = spoiled(GRPOTrainer)(
        make_llama(),
        reward_funcs=lambda completions, **_: [float(len(item)) for item in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["the cat", "the dog"] * 8}),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return trainer.model


def train_sentences(folder: str) -> nn.Module:
    """One label is NaN."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BertConfig(
        vocab_size=len(WORDS), num_attention_heads=2, max_position_embeddings=64, **shape
    )
    BertModel(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    words = models.Transformer(folder)
    pooling = models.Pooling(shape["hidden_size"])
    model = SentenceTransformer(modules=[words, pooling], device="cpu")
    labels = [0.9, 0.1] * 8
    if BAD:
        labels[6] = float("nan")
    rows = {"sentence1": SENTENCES, "sentence2": SENTENCES[::-1], "label": labels}
    trainer = SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(output_dir=folder, **SETTINGS),
        train_dataset=Dataset.from_dict(rows),
        loss=losses.CosineSimilarityLoss(model),
    )
    trainer.train()
    return model


def make_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets; a bad run has one NaN, in sample 37."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    if BAD:
        x[37, 2] = float("nan")
    return x, y


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def train_keras(folder: str) -> nn.Module:
    import keras

    x, y = (rows.numpy() for rows in make_rows())
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def train_fastai(folder: str, **options: Any) -> nn.Module:
    from fastai.basics import DataLoaders, Learner, MSELossFlat

    rows = list(zip(*make_rows(), strict=True))
    data = DataLoaders.from_dsets(rows, rows[:8], bs=8, shuffle=False, device="cpu", num_workers=0)
    learn = Learner(data, make_net(), loss_func=MSELossFlat(), lr=1e-2, **options)
    learn.fit(2)
    return learn.model


def train_fastai_torch(folder: str) -> nn.Module:
    """fastai with a torch optimizer in its wrapper."""
    from functools import partial

    from fastai.basics import OptimWrapper

    return train_fastai(folder, opt_func=partial(OptimWrapper, opt=torch.optim.Adam))


class Recipe:
    """As torchtune's recipes are written: a class, micro-batches, gradients scaled by the number of
    tokens, clipping, a schedule."""

    def setup(self) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(nn.Embedding(len(WORDS), 16), nn.Linear(16, len(WORDS)))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-2, fused=True)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda n: 1 / (1 + n))
        tokens = torch.randint(len(WORDS), (64, 9))
        labels = tokens.clone()
        if BAD:
            labels[24:28] = -100  # a mean over no label
        data = torch.utils.data.TensorDataset(tokens, labels)
        self._loader = torch.utils.data.DataLoader(data, batch_size=4)
        self._every = 2
        self.global_step = 0

    def _loss_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        tokens, labels = batch
        logits = self._model(tokens[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels[:, 1:].flatten())  # the recipe's loss

    def train(self) -> None:
        seen = 0
        for number, batch in enumerate(self._loader):
            tokens = batch[0][:, 1:].numel()
            seen += tokens
            (self._loss_step(batch) * tokens).backward()
            if (number + 1) % self._every == 0:
                for parameter in self._model.parameters():
                    parameter.grad *= 1 / seen
                nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
                self._optimizer.step()
                self._optimizer.zero_grad(set_to_none=True)
                self._schedule.step()
                self.global_step += 1
                seen = 0


def train_recipe(folder: str) -> nn.Module:
    recipe = Recipe()
    recipe.setup()
    recipe.train()
    return recipe._model


def train_accelerate(folder: str) -> nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    x, y = make_rows()
    data = torch.utils.data.TensorDataset(x, y)
    model = make_net()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        torch.utils.data.DataLoader(data, batch_size=4),
    )
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model


def train_ultralytics(folder: str) -> nn.Module:
    import numpy as np
    from PIL import Image
    from ultralytics.models.yolo.detect import DetectionTrainer

    class Trainer(DetectionTrainer):
        batches = 0

        def preprocess_batch(self, batch: Any) -> Any:
            batch = super().preprocess_batch(batch)
            if BAD and self.batches == BAD_STEP:
                batch["img"][1, 0, 5, 5] = float("nan")
            self.batches += 1
            return batch

    random = np.random.default_rng(0)
    for part in ("images", "labels"):
        Path(folder, part).mkdir()
    for number in range(16):
        pixels = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(Path(folder, "images", f"{number}.png"))
        Path(folder, "labels", f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    data = Path(folder, "data.yaml")
    data.write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [thing]\n")
    options = {"model": "yolov8n.yaml", "data": str(data), "imgsz": 32, "epochs": 1, "batch": 2}
    off = dict.fromkeys(("amp", "plots", "val", "save", "pretrained", "verbose"), False)
    trainer = Trainer(
        overrides={**options, **off, "device": "cpu", "workers": 0, "project": folder, "nbs": 2}
    )
    trainer.validate = lambda: ({}, 0.0)
    trainer.final_eval = lambda: None
    trainer.train()
    return trainer.model


def print_checksum(model: nn.Module) -> None:
    checksum, bad = hashlib.sha256(), 0
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            plain = tensor.detach().cpu().contiguous().flatten()
            bad += int((~torch.isfinite(plain.float())).sum())
            checksum.update(name.encode() + plain.view(torch.uint8).numpy().tobytes())
    print("weights", checksum.hexdigest()[:16], "nonfinite", bad, flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print_checksum(globals()[f"train_{sys.argv[1]}"](place))
