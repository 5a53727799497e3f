"""Edits of what a loss receives: probabilities, shapes, reductions, ignored labels, targets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from headway.core.findings import Finding, Remedy
from headway.fix.syntax import SyntaxFile, callee, keyword, receiver, with_keyword, without_argument

_SQUASHING = {
    "softmax": ("softmax", "Softmax"),
    "log_softmax": ("log_softmax", "LogSoftmax"),
    "sigmoid": ("sigmoid", "Sigmoid"),
}
_WITH_LOGITS = {
    "nll_loss": "cross_entropy",
    "NLLLoss": "CrossEntropyLoss",
    "binary_cross_entropy": "binary_cross_entropy_with_logits",
    "BCELoss": "BCEWithLogitsLoss",
}


def pass_logits(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD110, HD111: no softmax or sigmoid before a loss that applies its own."""
    made_by = str(finding.evidence.get("made_by", "softmax"))
    function, module = _SQUASHING.get(made_by, _SQUASHING["softmax"])
    line = finding.evidence.get("made_at_line") or finding.where.line
    lines = {line, finding.where.line}
    for node in file.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        if node.lineno not in lines and file.statement(node).lineno not in lines:
            continue
        if callee(node) in (function, f"{function}_"):
            yield from _without_call(file, node, function)
        elif any(callee(value) == module for value in _assigned(file, node.func)):
            yield from _without_call(file, node, module)
    for node in file.calls(module):
        outer = next((item for item in file.around(node) if isinstance(item, ast.Call)), None)
        if outer is not None and node in outer.args and len(outer.args) > 1:
            edits = file.edits(without_argument(file, outer, node))
            yield Remedy(f"Remove `{file.of(node)}`: the loss expects logits", edits=edits)
        elif isinstance(file.statement(node), ast.Assign):
            edits = file.edits(file.replace(node, f"{_prefix(file, node)}Identity()"))
            yield Remedy(
                f"Replace `{file.of(node)}` by Identity: the loss expects logits", edits=edits
            )


def loss_with_logits(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD111: the loss that expects logits."""
    for node in file.calls(*_WITH_LOGITS):
        if isinstance(node.func, ast.Attribute | ast.Name):
            old = callee(node)
            new = file.of(node.func)[: -len(old)] + _WITH_LOGITS[old]
            edits = file.edits(file.replace(node.func, new))
            yield Remedy(
                f"Use `{_WITH_LOGITS[old]}`, which expects logits", edits=edits, safe=False
            )


def align_shapes(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD109: prediction and target get the same shape."""
    statement = file.at(finding.where.line)
    if statement is None:
        return
    prediction = _shape(finding.evidence.get("prediction_shape"))
    target = _shape(finding.evidence.get("target_shape"))
    longer = None
    if len(prediction) == len(target) + 1:
        longer = 0
    elif len(target) == len(prediction) + 1:
        longer = 1
    if longer is None:
        return
    sizes = (prediction, target)[longer]
    dim = -1 if sizes[-1] == 1 else next((at for at, size in enumerate(sizes) if size == 1), None)
    if dim is None:
        return
    for sides in _compared(file, statement):
        for side in (sides[longer], sides[1 - longer]):
            new = f"{file.tight(side)}.squeeze({dim})"
            edits = file.edits(file.replace(side, new))
            yield Remedy(
                f"Write `{new}`: shapes {sizes} and {(prediction, target)[1 - longer]} broadcast",
                edits=edits,
            )


def average_loss(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD116: the mean over the batch and not the sum."""
    for node in file.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        given = keyword(node, "reduction")
        if (
            given is not None
            and isinstance(given.value, ast.Constant)
            and given.value.value == "sum"
        ):
            edits = file.edits(file.replace(given.value, '"mean"'))
            yield Remedy('Use `reduction="mean"`', edits=edits, safe=False)
    statement = file.at(finding.where.line)
    for node in file.calls("sum", within=statement) if statement is not None else ():
        owner = receiver(node)
        if owner is not None and not node.args and isinstance(node.func, ast.Attribute):
            edits = file.edits(file.replace(node, f"{file.of(owner)}.mean()"))
            yield Remedy("Use the mean over the batch", edits=edits, safe=False)


def ignore_label(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD505: a negative label that marks padding is ignored."""
    low = finding.evidence.get("low", finding.evidence.get("label"))
    values = [low, *re.findall(r"-\d+", finding.message)]
    labels = list(dict.fromkeys(int(value) for value in values if _is_negative(value)))
    statement = file.at(finding.where.line)
    if statement is None or not labels:
        return
    for label in labels:
        for node in file.calls("cross_entropy", "nll_loss", within=statement):
            edits = file.edits(with_keyword(file, node, "ignore_index", str(label)))
            yield Remedy(f"Ignore the label {label}: `ignore_index={label}`", edits=edits)
        for node in file.calls("CrossEntropyLoss", "NLLLoss"):
            edits = file.edits(with_keyword(file, node, "ignore_index", str(label)))
            yield Remedy(f"Ignore the label {label}: `ignore_index={label}`", edits=edits)


def detach_target(finding: Finding, file: SyntaxFile) -> Iterator[Remedy]:
    """HD401: a target that another model computes gets no gradient."""
    for node in file.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        if (
            len(node.args) >= 2
            and (callee(node).endswith(("loss", "criterion")) or _is_loss(file, node))
            and not _is_from_data(file, node.args[1])
        ):
            new = f"{file.tight(node.args[1])}.detach()"
            edits = file.edits(file.replace(node.args[1], new))
            yield Remedy(f"Write `{new}`: no gradient flows into the target", edits=edits)


def _is_from_data(file: SyntaxFile, node: ast.expr) -> bool:
    """Whether an expression only reads what a loop draws, as in `for x, y in loader`: `y.long()`,
    `batch["y"]`; or selects from a table of labels."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return True
    loops = [loop for loop in file.nodes(ast.For) if isinstance(loop, ast.For)]
    drawn = {name for loop in loops for name in _names_in(loop.target)}
    return bool(names := _names_in(node)) and names <= drawn


def _names_in(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def _without_call(file: SyntaxFile, node: ast.Call, name: str) -> Iterator[Remedy]:
    owner = receiver(node)
    library = owner is not None and file.of(owner).split(".")[0] in (
        "torch",
        "F",
        "nn",
        "functional",
    )
    method = owner is not None and not library and callee(node) == name
    inner = owner if method else (node.args[0] if node.args else None)
    if inner is not None:
        edits = file.edits(file.replace(node, file.of(inner)))
        yield Remedy(f"Remove `{name}`: the loss expects logits", edits=edits)


def _assigned(file: SyntaxFile, node: ast.expr) -> list[ast.expr]:
    return list(file.values_of(file.of(node)))


def _prefix(file: SyntaxFile, node: ast.Call) -> str:
    return file.of(node.func)[: -len(callee(node))]


def _is_loss(file: SyntaxFile, node: ast.Call) -> bool:
    return any(callee(value).endswith("Loss") for value in _assigned(file, node.func))


def _compared(file: SyntaxFile, statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(prediction, target) of each loss or difference in a statement."""
    for node in file.nodes(ast.Call, ast.BinOp, within=statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            yield node.left, node.right
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            yield node.args[0], node.args[1]


def _shape(text: object) -> tuple[int, ...]:
    return tuple(int(size) for size in re.findall(r"\d+", str(text)))


def _is_negative(value: object) -> bool:
    try:
        return int(str(value)) < 0
    except ValueError:
        return False
