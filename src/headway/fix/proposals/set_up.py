"""Edits of the set-up: the optimizer's place, data loaders and samplers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headway.core.findings import Finding, Remedy
from headway.fix.proposals.training_loop import detach_state
from headway.fix.syntax import SyntaxFile, callee, with_keyword

_MOVES = ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "compile")
_WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel", "FullyShardedDataParallel", "FSDP")


def optimizer_after_move(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD402, HD904: the optimizer is created after the model was moved, cast or changed."""
    created = file.at(finding.where.line)
    if not _creates_optimizer(created):
        created = next(
            (
                item
                for item in file.nodes(ast.Assign)
                if isinstance(item, ast.Assign) and _creates_optimizer(item)
            ),
            None,
        )
    if created is None:
        return
    block = list(file.block(created))
    text = file.of(created)
    later = block[block.index(created) + 1 :]
    for statement in reversed([item for item in later if _changes_model(file, item)]):
        edits = file.edits(file.delete(created), file.insert_after(statement, text))
        what = file.of(statement).splitlines()[0]
        yield Remedy(f"Create the optimizer after `{what}`", edits=edits, same_loss=False)


def set_epoch(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD507, HD603: `sampler.set_epoch(epoch)` before every pass."""
    samplers = [
        file.of(node.targets[0])
        for node in file.nodes(ast.Assign)
        if isinstance(node, ast.Assign) and callee(node.value).endswith("Sampler")
    ]
    loaders = [
        f"{file.of(node.targets[0])}.sampler"
        for node in file.nodes(ast.Assign)
        if isinstance(node, ast.Assign) and callee(node.value) == "DataLoader"
    ]
    for loop in file.nodes(ast.For):
        assert isinstance(loop, ast.For)
        inside = any(isinstance(item, ast.For) for item in ast.walk(loop) if item is not loop)
        if (
            not isinstance(loop.target, ast.Name)
            or not inside
            or not [*file.calls("backward", "step", within=loop)]
        ):
            continue
        for name in dict.fromkeys([*samplers, *([] if samplers else loaders)]):
            text = f"{name}.set_epoch({loop.target.id})"
            edits = file.edits(file.insert_before(loop.body[0], text))
            yield Remedy(f"Call `{text}` before every pass", edits=edits)


def shuffle(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD507: the loader of the training data shuffles."""
    statement = file.at(finding.where.line)
    for node in file.calls("DataLoader"):
        given = {item.arg for item in node.keywords}
        if given & {"sampler", "batch_sampler"} or (
            statement and file.statement(node) is not statement
        ):
            continue
        edits = file.edits(with_keyword(file, node, "shuffle", "True"))
        yield Remedy("Shuffle the training data: `shuffle=True`", edits=edits, safe=False)


def prevent_crash(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD911: an exception whose message names its cause."""
    if "more than 1 value per channel" in finding.message:
        yield from drop_last(file)
    elif "backward through the graph a second time" in finding.message:
        yield from detach_state(finding, file)


def drop_last(file: SyntaxFile) -> Iterator[Remedy]:
    """A last batch of one sample has no variance."""
    for node in file.calls("DataLoader"):
        given = {item.arg for item in node.keywords}
        if not given & {"batch_sampler", "drop_last"}:
            edits = file.edits(with_keyword(file, node, "drop_last", "True"))
            yield Remedy("Leave out the incomplete last batch: `drop_last=True`", edits=edits)


def _creates_optimizer(statement: ast.stmt | None) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Call) and any(
        "parameters" in ast.unparse(arg) for arg in value.args[:1]
    )


def _changes_model(file: SyntaxFile, statement: ast.stmt) -> bool:
    """Whether a statement moves, casts, wraps or replaces something."""
    if isinstance(statement, ast.Assign):
        value = statement.value
        replaces_part = isinstance(statement.targets[0], ast.Attribute)
        return callee(value) in (*_MOVES, *_WRAPPERS) or replaces_part
    return isinstance(statement, ast.Expr) and callee(statement.value) in _MOVES
