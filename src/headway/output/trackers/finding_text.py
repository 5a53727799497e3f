"""A finding as title, plain text and Markdown for trackers."""

from __future__ import annotations

from headway.core.findings import Finding
from headway.output.display_text import clean


def title(finding: Finding) -> str:
    """Short enough for a list of alerts."""
    return clean(f"{finding.code} {finding.name}")


def lines(finding: Finding) -> list[str]:
    """What was found, where, and what to do about it."""
    step = "" if finding.step is None else f"step {finding.step}: "
    told = [f"{finding.severity}: {step}{finding.message}"]
    where = finding.where
    if where.file is not None:
        line = "" if where.line is None else f":{where.line}"
        told.append(f"at {where.file}{line}" + (f" in {where.function}" if where.function else ""))
    elif where.module is not None:
        told.append(f"in {where.module}")
    for remedy in finding.remedies:
        tried = " (tested: it cured this step)" if remedy.tested and remedy.cured else ""
        told.append(f"try: {remedy.text}{tried}")
    return [clean(line) for line in told]


def text(finding: Finding) -> str:
    """All of it, plain."""
    return "\n".join(lines(finding))


def markdown(finding: Finding) -> str:
    """The same, for a page that renders Markdown: nothing in it is taken for a link or a tag."""
    head, *rest = (_escaped(line) for line in lines(finding))
    return "\n".join(
        [f"**{_escaped(title(finding))}** {head}", "", *(f"- {line}" for line in rest)]
    )


def _escaped(line: str) -> str:
    marked = "".join(f"\\{mark}" if mark in "\\`*_[]#|" else mark for mark in line)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
