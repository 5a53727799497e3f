"""The names that frameworks give to the settings of a run, in one table.

Settings come from files and pickled arguments beside a run (`postmortem/run_settings.py`), from
trackers, and from lines that a script prints before its first numbers. All of them become facts
under the names of this table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 6
"""Levels of nesting that are searched."""


@dataclass(frozen=True)
class _Setting:
    """One setting: the fact it becomes and what frameworks call it."""

    fact: str
    names: tuple[str, ...] = ()
    """Names in files and stores, the best first: it wins if several are set."""
    console: str = ""
    """Regular expression for the name in a line of a console log."""
    number: bool = True


_SETTINGS = (
    _Setting(
        "learning_rate",
        ("learning_rate", "lr", "base_lr", "lr0", "max_lr"),
        r"learning[_ ]?rate|(?:base_|max_|peak_|init_)?lr|lr0",
    ),
    _Setting(
        "warmup_steps", ("warmup_steps", "num_warmup_steps", "lr_warmup_steps", "warmup_iters")
    ),
    _Setting("warmup_ratio", ("warmup_ratio", "lr_warmup_fraction")),
    _Setting(
        "warmup",
        console=r"(?:lr_?|num_|linear_)?warm[_-]?up"
        r"(?:_(?:steps|iters|ratio|epochs|iterations|samples|num_steps))?",
    ),
    _Setting(
        "max_norm",
        (
            "max_grad_norm",
            "gradient_clip_val",
            "clip_grad",
            "grad_clip",
            "clip_grad_norm",
            "gradient_clipping",
            "max_norm",
            "grad_norm_clip",
            "grad_clip_norm",
            "gradient_clip_norm",
        ),
        r"max[_-]?(?:grad[_-])?norm|clip[_-]?grad(?:[_-]?norm)?"
        r"|grad(?:ient)?[_-]?clip(?:ping)?(?:[_-](?:val|norm|value))?|clip[_-]?norm|clip",
    ),
    _Setting("weight_decay", ("weight_decay", "wd"), r"weight[_-]decay|wd"),
    _Setting(
        "batch_size",
        (
            "per_device_train_batch_size",
            "batch_size",
            "train_batch_size",
            "batch",
            "micro_batch_size",
            "global_batch_size",
        ),
        r"(?:global_|train_|total_|per_device_train_|micro_)?batch[_-]?size",
    ),
    _Setting(
        "precision",
        ("precision", "mixed_precision", "amp_dtype"),
        r"(?:mixed_?)?precision|(?:params_|torch_|model_|compute_)?dtype",
        number=False,
    ),
    _Setting("bf16", console=r"bf16|fp16|amp", number=False),
    _Setting(
        "accumulation",
        (
            "gradient_accumulation_steps",
            "accumulate_grad_batches",
            "grad_accum",
            "accum_steps",
        ),
    ),
    _Setting("logging_steps", ("logging_steps",)),
    _Setting("optimizer", ("optim", "optimizer"), number=False),
    _Setting("scheduler", ("lr_scheduler_type", "scheduler", "lr_decay_style"), number=False),
    _Setting("seed", ("seed",)),
    _Setting("logging_nan_inf_filter", ("logging_nan_inf_filter",), number=False),
    _Setting("torch_dtype", ("torch_dtype", "dtype"), number=False),
    _Setting("tie_word_embeddings", ("tie_word_embeddings",), number=False),
)
_BY_NAME = {
    name: (setting, rank)
    for setting in _SETTINGS
    for rank, name in reversed(list(enumerate(setting.names)))
}
CLIP_LIMIT_NAMES = ("max_norm", *next(s.names for s in _SETTINGS if s.fact == "max_norm"))
"""Names of the limit on the gradient norm, ours first."""


# Settings from files and stores.


def named_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the names of the table; a value of the wrong type is left out."""
    found: dict[str, Any] = {}
    best: dict[str, int] = {}
    for key, value in _flat(raw):
        setting, rank = _BY_NAME.get(key, (None, 0))
        fit = None if setting is None else _fit(setting, value)
        if setting is not None and fit is not None and rank < best.get(setting.fact, 1 << 30):
            found[setting.fact], best[setting.fact] = fit, rank
    for flag in ("fp16", "bf16"):
        if raw.get(flag) is True:
            found.setdefault("precision", flag)
    if found.get("max_norm") == 0:
        del found["max_norm"]  # 0 is how frameworks write "do not clip"
    if str(found.get("precision", "")).lower() in ("no", "none", "off", "false"):
        del found["precision"]
    return found


def _fit(setting: _Setting, value: Any) -> Any:
    if setting.number:
        number = _number(value)
        return number if number is not None and number >= 0 else None
    if isinstance(value, bool) or (isinstance(value, (str, int)) and str(value)):
        return value
    return None


def _number(value: Any) -> float | int | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else None
    return value if math.isfinite(value) else None


def _flat(raw: Mapping[str, Any], depth: int = 0) -> Iterable[tuple[str, Any]]:
    """(last part of the name, value), outer levels first."""
    inner = []
    for key, value in raw.items():
        if isinstance(value, Mapping) and "value" in value and len(value) <= 2:
            yield str(key).lower(), value["value"]  # the config.yaml of W&B
        elif isinstance(value, Mapping):
            inner.append(value)
        else:
            yield str(key).rpartition(".")[2].rpartition("/")[2].lower(), value
    for item in inner:
        if depth < MAX_DEPTH:
            yield from _flat(item, depth + 1)


# Settings in lines of a console log: `learning_rate: 0.0003`.

_CONSOLE = {setting.fact: setting.console for setting in _SETTINGS if setting.console}
_CONSOLE_SETTING = re.compile(
    r"(?<![\w./])[\"']?(?:--)?(?:"
    + "|".join(f"(?P<{fact}>{names})" for fact, names in _CONSOLE.items())
    + r")[\"']?[ \t]{0,60}(?:[:=]|\.{3,}|(?<=\s)(?=[\d]))[ \t]{0,4}[\"']?(?P<value>[\w.+-]{1,40})",
    re.IGNORECASE,
)
_BANNER = re.compile(
    r"(Num examples|Num Epochs|Total optimization steps|Gradient Accumulation steps"
    r"|Total train batch size[^=]{0,80}|Instantaneous batch size per device)\s?=\s?([\d,]{1,20})"
)
"""What the Hugging Face Trainer prints at the start."""
_BANNER_FACTS = {
    "Num examples": "num_examples",
    "Num Epochs": "num_epochs",
    "Total optimization steps": "total_steps",
    "Gradient Accumulation steps": "accumulation",
}
_PRECISIONS = {
    **dict.fromkeys(("16", "16-mixed", "half", "float16"), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bfloat16"), "bf16"),
    **dict.fromkeys(("32", "32-true", "float32"), "fp32"),
}


def learn_settings(line: str, facts: dict[str, Any]) -> bool:
    """Adds the settings in a line to `facts`; earlier ones stay. Whether there were any."""
    found = False
    for match in _CONSOLE_SETTING.finditer(line):
        fact = next(name for name in _CONSOLE if match[name])
        value = _console_value(fact, match)
        if value is not None:
            facts.setdefault("precision" if fact == "bf16" else fact, value)
            found = True
    for match in _BANNER.finditer(line):
        digits = match[2].replace(",", "")
        if len(digits) <= 15:
            facts.setdefault(_BANNER_FACTS.get(match[1], "batch_size"), int(digits or 0))
            found = True
    return found


def _console_value(fact: str, match: re.Match[str]) -> Any:
    text = match["value"]
    if fact == "bf16":  # a switch, named after the precision it turns on
        return match["bf16"].lower() if text.lower() in ("true", "1", "yes") else None
    if fact == "precision":
        word = text.lower().removeprefix("torch.")
        return None if word in ("none", "null", "true", "false") else _PRECISIONS.get(word, word)
    try:
        value = float(text.rstrip(".,"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
