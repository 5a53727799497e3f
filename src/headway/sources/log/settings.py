"""Settings that a log prints before its first numbers: `learning_rate: 0.0003`."""

from __future__ import annotations

import re
from typing import Any

_NAMES = {
    "learning_rate": r"learning[_ ]?rate|(?:base_|max_|peak_|init_)?lr|lr0",
    "warmup": r"(?:lr_?|num_|linear_)?warm[_-]?up(?:"
    r"_(?:steps|iters|ratio|epochs|iterations|samples|num_steps))?",
    "max_norm": r"max[_-]?(?:grad[_-])?norm|clip[_-]?grad(?:[_-]?norm)?"
    r"|grad(?:ient)?[_-]?clip(?:ping)?"
    r"(?:[_-](?:val|norm|value))?|clip[_-]?norm|clip",
    "weight_decay": r"weight[_-]decay|wd",
    "batch_size": r"(?:global_|train_|total_|per_device_train_|micro_)?batch[_-]?size",
    "precision": r"(?:mixed_?)?precision|(?:params_|torch_|model_|compute_)?dtype",
    "bf16": r"bf16|fp16|amp",
}
_SETTING = re.compile(
    r"(?<![\w./])[\"']?(?:--)?(?:"
    + "|".join(f"(?P<{key}>{names})" for key, names in _NAMES.items())
    + r")[\"']?[ \t]{0,60}(?:[:=]|\.{3,}|(?<=\s)(?=[\d]))[ \t]{0,4}[\"']?(?P<value>[\w.+-]{1,40})",
    re.IGNORECASE,
)
_BANNER = re.compile(
    r"(Num examples|Num Epochs|Total optimization steps|Gradient Accumulation steps"
    r"|Total train batch size[^=]{0,80}|Instantaneous batch size per device)\s?=\s?([\d,]{1,20})"
)
_BANNER_NAMES = {
    "Num examples": "num_examples",
    "Num Epochs": "num_epochs",
    "Total optimization steps": "total_steps",
    "Gradient Accumulation steps": "accumulation",
}
_HALVES = {
    "16": "fp16",
    "16-mixed": "fp16",
    "bf16-mixed": "bf16",
    "half": "fp16",
    "float16": "fp16",
}
_HALVES |= {"bfloat16": "bf16", "float32": "fp32", "32": "fp32", "32-true": "fp32"}


def learn(line: str, facts: dict[str, Any]) -> bool:
    """Add the settings a line tells to `facts`; the first stays. Whether there were any."""
    found = False
    for match in _SETTING.finditer(line):
        key = match.lastgroup if match.lastgroup != "value" else None
        key = next((name for name in _NAMES if match[name]), key)
        text = match["value"]
        if key == "bf16":
            if text.lower() in ("true", "1", "yes"):
                facts.setdefault("precision", match["bf16"].lower())
                found = True
            continue
        if key == "precision":
            word = text.lower().removeprefix("torch.")
            if word not in ("none", "null", "true", "false"):
                facts.setdefault("precision", _HALVES.get(word, word))
                found = True
            continue
        value = _number(text)
        if key and value is not None:
            facts.setdefault(key, value)
            found = True
    for match in _BANNER.finditer(line):
        name = _BANNER_NAMES.get(match[1], "batch_size")
        if len(match[2].replace(",", "")) <= 15:
            facts.setdefault(name, int(match[2].replace(",", "") or 0))
            found = True
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text.rstrip(".,"))
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
