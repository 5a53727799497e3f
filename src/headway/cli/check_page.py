"""The page that `headway check` prints: tables of model and optimizer and the checklist with -v,
then the findings, next to the prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway import registry
from headway.cli.checks import FAMILIES
from headway.core.findings import Severity
from headway.core.numbers import say, say_bytes
from headway.output.console import SEVERITY_STYLES, ReportPrinter
from headway.output.terminal import TerminalPage

if TYPE_CHECKING:
    from headway.preflight.runner import CheckResult

SHOWN_OPTIMIZER_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps")


def write_check_page(done: CheckResult, *, verbose: bool) -> TerminalPage:
    """Print findings, model and optimizer tables, and the checklist."""
    page = TerminalPage(sys.stdout)
    page.begin_after_script()
    found = done.report.worst >= Severity.WARNING
    if done.unreached is not None and not done.passes and not found:
        page.line("headway: ", ("nothing could be checked", "bold yellow"))
        page.line(str(done.unreached), rest="  ")
        return page
    if verbose:
        _tables(page, done)
        _checklist(page, done)
        page.gap()
    else:
        _overfit_result(page, done)
    ReportPrinter(page, verbose=verbose).write(done.report, "headway")
    page.line((_format_step_count(done, verbose=verbose), "dim"), rest="  ")
    if done.unreached is not None:
        page.gap()
        page.line(str(done.unreached), rest="  ")
    return page


def _overfit_result(page: TerminalPage, done: CheckResult) -> None:
    overfit = done.tables.get("overfit")
    if isinstance(overfit, Mapping):
        _overfit(page, overfit)


def _tables(page: TerminalPage, done: CheckResult) -> None:
    inventory = done.tables.get("inventory")
    if isinstance(inventory, Mapping):
        for model in inventory.get("models", ()):
            _model(page, model)
        for optimizer in inventory.get("optimizers", ()):
            _optimizer(page, optimizer)
    _overfit_result(page, done)
    memory = done.tables.get("memory")
    if isinstance(memory, Mapping):
        _memory(page, memory)


def _format_step_count(done: CheckResult, *, verbose: bool) -> str:
    import torch

    from headway.torch_adapters.device_failure.lost_device import device_is_lost

    usable = torch.cuda.is_initialized() and not device_is_lost()
    device = torch.cuda.get_device_name() if usable else "CPU"
    steps = done.report.looked_at
    if done.interrupted:
        ended = f"interrupted after {steps}"
    elif done.stopped:
        why = f" ({done.limit})" if done.limit.startswith("-") else f": {done.limit}"
        ended = f"stopped after {steps}" + (why if done.limit else "")
    else:
        ended = f"the script {'failed' if done.error is not None else 'ended'} after {steps}"
    more = "" if verbose else "; -v shows the model, the optimizer and each family of checks"
    return f"{ended}; torch {torch.__version__} on {device}{more}"


def _model(page: TerminalPage, model: Mapping[str, Any]) -> None:
    frozen = model["parameters"] - model["trainable"]
    page.line(
        (f"{model['class']}", "bold"),
        f"  {_number(model['parameters'])} parameters, "
        f"{_number(model['trainable'])} trainable, {_number(frozen)} frozen; "
        f"{_shares(model['dtypes'])} on {_shares(model['devices'])}",
        rest="    ",
    )
    parts: Sequence[Mapping[str, Any]] = model["parts"]
    width = max((len(part["name"]) for part in parts), default=0)
    for part in parts[:12]:
        state = _state(part)
        page.line(f"{part['name']:<{width}}  {_number(part['parameters']):>7}  {state}", first="  ")
    if len(parts) > 12 or model["parts_left_out"]:
        page.line((f"and {len(parts) - 12 + model['parts_left_out']} more", "dim"), first="  ")


def _state(part: Mapping[str, Any]) -> str:
    if not part["trainable"]:
        return "frozen"
    if part["trainable"] == part["parameters"]:
        return "trainable"
    return f"{_number(part['trainable'])} trainable, the rest frozen"


def _optimizer(page: TerminalPage, optimizer: Mapping[str, Any]) -> None:
    for at, group in enumerate(optimizer["groups"]):
        settings = ", ".join(
            f"{name} {_setting(group[name])}" for name in SHOWN_OPTIMIZER_SETTINGS if name in group
        )
        page.line(
            (f"{optimizer['class']} group {at}", "bold"),
            f"  {_number(group['parameters'])} in {group['tensors']} tensors; {settings}",
            rest="    ",
        )


def _memory(page: TerminalPage, memory: Mapping[str, Any]) -> None:
    phases = memory.get("phases", {})
    sizes = ", ".join(f"{name} {say_bytes(size)}" for name, size in phases.items())
    what = "Peak device memory" if memory.get("kind") == "device-peak" else "Resident memory"
    page.line((what, "bold"), f"  {sizes}", rest="    ")
    epochs = memory.get("epochs", ())
    if len(epochs) > 1:
        shown = [say_bytes(size) for size in epochs]
        if len(shown) > 8:
            shown = [*shown[:4], "…", *shown[-3:]]
        page.line((f"{what} by epoch", "bold"), f"  {', '.join(shown)}", rest="    ")


def _overfit(page: TerminalPage, found: Mapping[str, Any]) -> None:
    if "unavailable" in found:
        text = str(found["unavailable"])
    else:
        outcome = "learned" if found.get("learned") else "not learned"
        text = (
            f"loss {say(found['start'], 4)} to {say(found['end'], 4)} in {found['steps']} steps "
            f"on copies of the weights: {outcome}"
        )
    page.line(("Overfit one batch", "bold"), f"  {text}", rest="    ")


def _checklist(page: TerminalPage, done: CheckResult) -> None:
    """One line per family of checks; ticked only if it has no findings and most checks ran."""
    not_run = {item.code for item in done.report.not_run}
    worst: dict[str, Severity] = {}
    for finding in done.report.findings:
        family = finding.code[:3]
        worst[family] = max(finding.severity, worst.get(family, Severity.INFO))
    counts: dict[str, list[int]] = {}
    for check in registry.all_checks():
        ran, of = counts.setdefault(check.code[:3], [0, 0])
        counts[check.code[:3]] = [ran + (check.code not in not_run), of + 1]
    page.gap()
    for family, (ran, of) in counts.items():
        if family == "HD0":
            continue
        level = worst.get(family, Severity.INFO)
        bad = level >= Severity.WARNING
        most = 2 * ran > of
        mark = str(level) if bad else "good" if most else "info"
        style = SEVERITY_STYLES[str(level)] if bad else "green" if most else "dim"
        page.line(
            (page.mark(mark), style),
            f" {FAMILIES.get(family, family)}",
            (f"  {ran} of {of} checks ran", "dim"),
        )


def _setting(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_setting(item) for item in value) + ")"
    return say(value, 4) if isinstance(value, (int, float)) else str(value)


def _shares(counts: Mapping[str, int]) -> str:
    return ", ".join(counts) if len(counts) < 4 else f"{len(counts)} kinds"


def _number(count: int) -> str:
    for limit, word in ((10**9, "B"), (10**6, "M"), (10**4, "K")):
        if count >= limit:
            return f"{count / (limit if word != 'K' else 1000):.1f}{word}"
    return str(count)
