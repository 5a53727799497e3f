"""Edits of the training loop: zero_grad, unscale_ and clipping, schedules, modes, kept graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from headway.core.findings import Finding, Remedy
from headway.fix.syntax import LOOPS, SyntaxFile, callee, receiver

_HOLDER = re.compile(r"`([\w.]+)`")


def clear_gradients(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD206: `zero_grad` before every backward, or after every step when gradients accumulate."""
    for step in _optimizer_steps(file):
        name, statement = file.of(step[0]), step[1]
        misplaced = [
            file.statement(call)
            for call in file.calls("zero_grad")
            if file.loop(call) is not file.loop(statement)
            and file.function(call) is file.function(statement)
        ]
        removed = [file.delete(item) for item in misplaced]
        backward = _backward_beside(file, statement)
        if backward is not None:
            edits = file.edits(file.insert_before(backward, f"{name}.zero_grad()"), *removed)
            yield Remedy(f"Call `{name}.zero_grad()` before backward", edits=edits)
        edits = file.edits(file.insert_after(statement, f"{name}.zero_grad()"), *removed)
        yield Remedy(f"Call `{name}.zero_grad()` after each step", edits=edits)


def clear_after_step(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD205, HD306: `zero_grad` between backward and step clears what the step needs."""
    for _, step in _optimizer_steps(file):
        backward = _backward_beside(file, step)
        for call in file.calls("zero_grad"):
            clearing = file.statement(call)
            if backward is None or not backward.lineno < clearing.lineno < step.lineno:
                continue
            text = file.of(clearing)
            edits = file.edits(file.delete(clearing), file.insert_before(backward, text))
            yield Remedy(f"Move `{text}` before backward", edits=edits)


def unscale_before_clipping(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD314: `scaler.unscale_(optimizer)` comes before the clipping."""
    clip = file.at(finding.where.line)
    if clip is None:
        return
    for call in file.calls("unscale_"):
        later = file.statement(call)
        if later in file.block(clip) and later.lineno > clip.lineno:
            text = file.of(later)
            edits = file.edits(file.insert_before(clip, text), file.delete(later))
            yield Remedy(f"Move `{text}` before the clipping", edits=edits)
            return
    for call in file.calls("step"):
        scaler = receiver(call)
        if (
            scaler is not None
            and len(call.args) == 1
            and isinstance(call.args[0], ast.Name | ast.Attribute)
        ):
            text = f"{file.of(scaler)}.unscale_({file.of(call.args[0])})"
            edits = file.edits(file.insert_before(clip, text))
            yield Remedy(f"Call `{text}` before the clipping", edits=edits)


def step_schedule_per_epoch(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD405: a schedule that counts epochs is stepped after the loop over the batches."""
    for call in file.calls("step"):
        owner = receiver(call)
        statement, loop = file.statement(call), file.loop(call)
        made = [callee(value) for value in file.values_of(file.of(owner))] if owner else []
        if loop is None or file.loop(loop) is None:
            continue
        if any(name.endswith(("LR", "Restarts")) for name in made):
            text = file.of(statement)
            edits = file.edits(file.delete(statement), file.insert_after(loop, text))
            yield Remedy(f"Call `{text}` once per epoch", edits=edits, safe=False)


def train_mode(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD902: `model.train()` before each pass over the training data."""
    names = [file.of(item) for call in file.calls("eval") if (item := receiver(call)) is not None]
    backwards = list(file.calls("backward"))
    if not backwards or not names:
        return
    # `self.net.eval()` inside of a method does not name the model at the loop.
    visible = [name for name in dict.fromkeys(names) if not name.startswith("self.")]
    for name in visible or dict.fromkeys(names):
        for loop in _loops_around(file, backwards[0]):
            edits = file.edits(file.insert_before(loop, f"{name}.train()"))
            yield Remedy(f"Call `{name}.train()` before each training pass", edits=edits)
        first = file.loop(backwards[0])
        if first is not None:
            body = first.body[0]  # type: ignore[attr-defined]
            edits = file.edits(file.insert_before(body, f"{name}.train()"))
            yield Remedy(f"Call `{name}.train()` before each step", edits=edits)


def eval_mode(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD903: `model.eval()` before the evaluation, `model.train()` after it."""
    statement = file.at(finding.where.line)
    calls = [] if statement is None else [*file.nodes(ast.Call, within=statement)]
    for call in calls:
        assert isinstance(call, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "train":
            new = f"{file.of(call.func.value)}.eval()"
            yield Remedy(f"Call `{new}` here", edits=file.edits(file.replace(call, new)))
            continue
        if not isinstance(call.func, ast.Name | ast.Attribute) or not call.args:
            continue
        name = file.of(call.func)
        if not name.split(".")[0].isidentifier() or name.split(".")[0] in ("F", "torch", "nn"):
            continue
        outer = _outermost_evaluation(file, call)
        before = file.insert_before(outer, f"{name}.eval()")
        after = file.insert_after(outer, f"{name}.train()")
        leaves = any(isinstance(item, ast.Return) for item in ast.walk(outer))
        edits = file.edits(before) if leaves else file.edits(before, after)
        yield Remedy(f"Evaluate between `{name}.eval()` and `{name}.train()`", edits=edits)


def release_graph(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD803, HD801: keep the number and not the tensor with its graph."""
    match = _HOLDER.search(str(finding.evidence.get("holder", "")))
    name = match[1].split(".")[-1] if match else ""
    for node in _kept_values(file, name):
        for new in (f"{file.tight(node)}.item()", f"{file.tight(node)}.detach()"):
            edits = file.edits(file.replace(node, new))
            yield Remedy(f"Keep `{new}`, which has no graph", edits=edits, same_loss=True)
    if finding.evidence.get("carried") or not match:
        yield from detach_state(finding, file)
    statement = file.at(finding.where.line)
    if statement is None:
        return
    function = file.function(statement)
    arguments = file.nodes(ast.arg, within=function)
    given = {item.arg for item in arguments if isinstance(item, ast.arg)}
    kept = {file.of(node) for node in _kept_values(file, name)}
    # A value that the function is given has its graph already.
    if not [*file.calls("backward", within=function)] and not given & kept:
        yield from without_gradients(finding, file)


def without_gradients(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """Evaluation under `torch.no_grad()`."""
    statement = file.at(finding.where.line)
    if statement is None:
        return
    function = file.function(statement)
    if (
        isinstance(function, ast.FunctionDef)
        and function.name != "forward"
        and not function.decorator_list
        and not [*file.calls("backward", within=function)]
    ):
        edits = file.edits(file.insert_before(function, "@torch.no_grad()"))
        text = f"Decorate `{function.name}` with `@torch.no_grad()`"
        yield Remedy(text, edits=edits, same_loss=True)


def average_micro_batches(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD209: the loss of a micro-batch is divided by their number."""
    counts = [
        file.of(node.right)
        for node in file.nodes(ast.BinOp)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
    ]
    measured = re.search(r"by (\d+)", " ".join(item.text for item in finding.remedies))
    for call in file.calls("backward"):
        loss = receiver(call)
        for count in dict.fromkeys([*counts, *([measured[1]] if measured else [])]):
            if loss is not None and not isinstance(loss, ast.BinOp):
                scaled = (
                    callee(loss) == "scale" and isinstance(loss, ast.Call) and len(loss.args) == 1
                )
                target = loss.args[0] if scaled and isinstance(loss, ast.Call) else loss
                new = f"{file.tight(target)} / {count}"
                edits = file.edits(file.replace(target, new if scaled else f"({new})"))
                yield Remedy(f"Divide the loss by `{count}`", edits=edits, safe=False)


def _optimizer_steps(file: SyntaxFile) -> list[tuple[ast.expr, ast.stmt]]:
    """The optimizer and the statement of each `optimizer.step()` or `scaler.step(optimizer)`."""
    found = []
    for call in file.calls("step"):
        owner = receiver(call)
        if owner is None:
            continue
        scaled = len(call.args) == 1 and isinstance(call.args[0], ast.Name | ast.Attribute)
        optimizer = call.args[0] if scaled else owner
        made = [callee(value) for value in file.values_of(file.of(owner))]
        if any(name.endswith(("LR", "Restarts", "Plateau", "scheduler")) for name in made):
            continue
        if "sched" not in file.of(owner).lower():
            found.append((optimizer, file.statement(call)))
    return found


def _backward_beside(file: SyntaxFile, step: ast.stmt) -> ast.stmt | None:
    """The backward in the same block as a step."""
    for call in file.calls("backward"):
        statement = file.statement(call)
        if statement in file.block(step):
            return statement
    return None


def _loops_around(file: SyntaxFile, node: ast.AST) -> Iterator[ast.stmt]:
    """Loops over batches inside of a loop or a function, innermost first."""
    loop = file.loop(node)
    while loop is not None:
        if file.loop(loop) is not None or file.function(loop) is not file.tree:
            yield loop
        loop = file.loop(loop)


def _outermost_evaluation(file: SyntaxFile, call: ast.Call) -> ast.stmt:
    """The largest statement around a call that does not train."""
    outer = file.statement(call)
    for item in file.around(outer):
        if isinstance(item, ast.FunctionDef | ast.ClassDef | ast.Module):
            break
        if isinstance(item, ast.stmt) and not [*file.calls("backward", "step", within=item)]:
            outer = item
    return outer


def _kept_values(file: SyntaxFile, name: str) -> Iterator[ast.expr]:
    """What is added to a name, or appended to it."""
    if not name:
        return
    for node in file.nodes(ast.AugAssign, ast.Assign, ast.Call):
        if isinstance(node, ast.AugAssign) and file.of(node.target).split(".")[-1] == name:
            yield node.value
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            if file.of(node.targets[0]).split(".")[-1] == name:
                sides = (node.value.left, node.value.right)
                yield from (side for side in sides if file.of(side).split(".")[-1] != name)
        elif isinstance(node, ast.Call) and callee(node) == "append" and node.args:
            owner = receiver(node)
            if owner is not None and re.search(rf"\b{re.escape(name)}\b", file.of(owner)):
                value = node.args[0]
                yield from value.elts if isinstance(value, ast.Tuple) else [value]


def detach_state(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """A state that a step returns and the next one reads is detached in between."""
    for loop in file.nodes(*LOOPS):
        for node in file.nodes(ast.Assign, within=loop):
            assert isinstance(node, ast.Assign)
            if not isinstance(node.value, ast.Call):
                continue
            targets = node.targets[0]
            names = [targets] if not isinstance(targets, ast.Tuple) else targets.elts
            inputs = {file.of(arg) for arg in node.value.args}
            for state in [item for item in names if file.of(item) in inputs]:
                text = file.of(state)
                for new in (f"{text}.detach()", f"tuple(item.detach() for item in {text})"):
                    edits = file.edits(file.insert_before(node, f"{text} = {new}"))
                    yield Remedy(f"Detach `{text}` between steps", edits=edits)
