"""Teach a base model to answer between tags: supervised fine-tuning with LoRA.

python sft.py BASE OUT --weights float16
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from questions import END, PAD, decode, encode, number_in, questions
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

from headway.integrations.transformers import HeadwayCallback

IGNORED = -100


def example(asked: str, number: str) -> dict[str, list[int]]:
    """Only the answer is learned; the question is context."""
    question, answer = encode(asked), [*encode(f"<answer> {number} </answer>"), END]
    return {"input_ids": question + answer, "labels": [IGNORED] * len(question) + answer}


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    blank = {"input_ids": PAD, "labels": IGNORED}
    batch = {
        key: torch.tensor([row[key] + [fill] * (longest - len(row[key])) for row in rows])
        for key, fill in blank.items()
    }
    return {**batch, "attention_mask": (batch["input_ids"] != PAD).long()}


@torch.no_grad()
def examine(model: torch.nn.Module, asked: list[tuple[str, str]]) -> dict[str, float]:
    """Generate answers; returns the share of valid answers, and of correct ones."""
    model.eval()
    answers = []
    for question, _ in asked:
        tokens = torch.tensor([encode(question)])
        made = model.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=10,
            do_sample=False, pad_token_id=PAD, eos_token_id=END,
        )  # fmt: skip
        answers.append(number_in(decode(made[0, tokens.shape[1] :].tolist())))
    right = sum(answer == number for answer, (_, number) in zip(answers, asked, strict=True))
    valid = sum(answer is not None for answer in answers)
    return {"accuracy": right / len(asked), "answer_rate": valid / len(asked)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("out")
    parser.add_argument("--weights", default="float16", choices=["float16", "float32", "bfloat16"])
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--guard", metavar="FOLDER", help="train under the guard")
    args = parser.parse_args()
    torch.set_num_threads(1)  # for a model this small, more threads make it slower
    set_seed(0)

    dtype = getattr(torch, args.weights)
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=dtype)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora).to(dtype)
    model.enable_input_require_grads()

    learn, ask = questions()
    callbacks = [HeadwayCallback(run_dir=args.guard)] if args.guard else []
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.out,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            learning_rate=5e-3,
            optim="adamw_torch",
            max_grad_norm=1.0,
            gradient_checkpointing=True,
            fp16=torch.cuda.is_available() and args.weights == "float16",
            bf16=args.bf16,
            logging_steps=5,
            save_strategy="epoch",
            save_total_limit=1,
            report_to=[],
            remove_unused_columns=False,
            label_names=["labels"],
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=[example(*pair) for pair in learn],
        data_collator=collate,
        callbacks=callbacks,
    )
    began = time.process_time()  # CPU time of this process, not affected by other processes
    trainer.train()
    seconds = time.process_time() - began
    result = {
        **examine(model, ask),
        "samples_per_cpu_second": len(learn) * args.epochs / seconds,
        "weights_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print({key: round(value, 2) for key, value in result.items()})
    Path(args.out, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
