"""The tables of the comparison, from its results, and their place in docs/peers.md."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.corpus_runs import entries

BEGIN, END = "<!-- written by benchmarks/peers.py -->", "<!-- end of what it wrote -->"
ORDER = {
    "headway": "headway_tool",
    "anomaly": "anomaly",
    "underflow": "underflow",
    "lightning": "lightning_tool",
    "composer": "composer_tool",
    "wandb": "wandb_tool",
    "torch-audit": "torch_audit_tool",
    "trainpulse": "trainpulse_tool",
    "stabilityguard": "stabilityguard_tool",
    "mldoct": "mldoct_tool",
}
SETS = {"blind": ("blind",), "proper": ("tuned", "held-out"), "public": ("public",)}
Row = dict[str, Any]


def latest(folder: Path) -> Row:
    """The newest results."""
    found: Row = json.loads(sorted(folder.glob("*-peers.json"))[-1].read_text(encoding="utf-8"))
    return found


def write(root: Path, record: Row) -> None:
    path = root / "docs" / "peers.md"
    text = path.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n\n{tables(record)}\n{END}{tail}", encoding="utf-8")
    print(f"written: {path.relative_to(root)}")


def tables(record: Row) -> str:
    """All of them, as Markdown."""
    rows = record["rows"]
    corpus = [row for row in rows if row["part"] == "corpus"]
    parts = [_how(record, corpus)]
    for name, halves in SETS.items():
        some = [row for row in corpus if row["half"] in halves]
        if some:
            parts.append(_corpus(name, some, record))
    if corpus:
        parts += [_kinds(corpus), _better(corpus)]
    parts += [_overhead(rows), _files(rows)]
    return "\n".join(part for part in parts if part)


def tool_of(name: str) -> Any:
    return importlib.import_module(f"peer_tools.{ORDER[name]}").TOOL


def _how(record: Row, corpus: list[Row]) -> str:
    found = [f"Run on {record['date']}: {record['machine']}; Python {record['python']}."]
    for where, versions in record["versions"].items():
        listed = ", ".join(f"{name} {number}" for name, number in versions.items())
        if listed:
            extra = "" if where == "main" else " (Composer alone)"
            found.append(f"Versions{extra}: {listed}.")
    for name, why in record["setup"].items():
        found.append(f"Could not be installed: {name}. pip reported: {why}")
    broken = [row for row in corpus if row["state"] in ("broke", "died", "too slow")]
    if broken:
        listed = ", ".join(
            f"{row['tool']} on `{row['file']}` ({row['state']})" for row in broken[:12]
        )
        more = f", and {len(broken) - 12} more" if len(broken) > 12 else ""
        found.append(
            "Runs that failed or took too long, counted as having reported nothing: "
            f"{listed}{more}."
        )
    return "\n\n".join(found) + "\n"


def _corpus(name: str, rows: list[Row], record: Row) -> str:
    files = {row["file"]: row for row in rows if row["tool"] == "headway"} or {
        row["file"]: row for row in rows
    }
    faults = sum(not row["healthy"] for row in files.values())
    healthy = len(files) - faults
    title = {
        "blind": "The blind set: its author had seen neither the checks nor the other scripts",
        "proper": "The main corpus: headway's thresholds were chosen on half of it",
        "public": "Bugs of public threads, each with its fixed version",
    }[name]
    lines = [
        f"### {title}",
        "",
        f"{faults} faulty and {healthy} healthy scripts.",
        "",
        "| tool | can see by design | faulty scripts it can run | reported something"
        " | named the cause | of all faulty scripts | named the line | false alarms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tool in ORDER:
        own = [row for row in rows if row["tool"] == tool]
        if own:
            lines.append(_corpus_line(tool, own, faults))
        else:
            lines.append(f"| {tool_of(tool).name} | {tool_of(tool).reach} | not run | | | | | |")
    return "\n".join(lines) + "\n"


def _corpus_line(tool: str, rows: list[Row], faults: int) -> str:
    kind = tool_of(tool)
    can = [row for row in rows if row["state"] not in ("cannot", "not installed")]
    if not can:
        why = next((row.get("why", row["state"]) for row in rows), "")
        return f"| {kind.name} | {kind.reach} | none: {why} | | | | | |"
    bad = [row for row in can if not row["healthy"]]
    good = [row for row in can if row["healthy"]]
    lined = [row for row in bad if row["line"] is not None]
    cause = sum(row["cause"] for row in bad)
    if kind.sample:
        quiet = sum(not row["spoke"] for row in can)
        sample = f"a sample of {len(bad)} | n/a: no report in {quiet} of {len(can)} runs"
        return f"| {kind.name} | {kind.reach} | {sample} | n/a | n/a | n/a | n/a |"
    cells = [
        kind.name,
        kind.reach,
        str(len(bad)),
        _of(sum(row["spoke"] for row in bad), len(bad)),
        _of(cause, len(bad)),
        _of(cause, faults),
        _of(sum(bool(row["line"]) for row in lined), len(lined)),
        _of(sum(row["spoke"] for row in good), len(good)),
    ]
    return "| " + " | ".join(cells) + " |"


def _of(some: int, number: int) -> str:
    return f"{some} of {number} ({100 * some / number:.0f} %)" if number else "-"


def _kinds(corpus: list[Row]) -> str:
    """Which kinds of fault each names."""
    family = {entry.file: entry.family for entry in entries()}
    run = {family[row["file"]] for row in corpus if not row["healthy"]}
    order = ("loop", "graph", "loss", "data", "mode", "precision")
    kinds = [kind for kind in order if kind in run]
    tools = [name for name in ORDER if not tool_of(name).sample]
    lines = [
        "### Named causes by kind of fault, over every set that was run",
        "",
        "| tool | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for tool in tools:
        own = [
            row
            for row in corpus
            if row["tool"] == tool
            and not row["healthy"]
            and row["state"] not in ("cannot", "not installed")
        ]
        if not own:
            continue
        cells = []
        for kind in kinds:
            some = [row for row in own if family.get(row["file"]) == kind]
            cells.append(f"{sum(row['cause'] for row in some)} of {len(some)}" if some else "-")
        lines.append(f"| {tool_of(tool).name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _better(corpus: list[Row]) -> str:
    """Scripts on which a peer did what headway did not."""
    ours = {row["file"]: row for row in corpus if row["tool"] == "headway"}
    accepted = {entry.file: {*entry.codes, *entry.also} for entry in entries()}
    cases = []
    for row in corpus:
        own = ours.get(row["file"])
        if own is None or row["tool"] == "headway" or row["healthy"]:
            continue
        # By one measure for both: any rule that means the fault, not the first cause alone.
        named = {"cause": accepted[row["file"]] & {*own["rules"]}, "line": own["line"]}
        name = tool_of(row["tool"]).name
        cases += [
            f"{name} names the {what} of `{row['file']}`, headway does not."
            for what in ("cause", "line")
            if row[what] and not named[what]
        ]
    for row in ours.values():
        file, said = row["file"], ", ".join(row["rules"]) or "nothing"
        if row["healthy"] and row["spoke"]:
            cases.append(f"headway gives a false alarm on `{file}`: {said}.")
        if not row["healthy"] and not row["cause"]:
            cases.append(f"headway does not put the cause of `{file}` first; it says {said}.")
    lines = ["### Where headway is wrong, or a peer is better", ""]
    lines += [f"- {text}" for text in cases] or ["On these scripts, nowhere."]
    return "\n".join(lines) + "\n"


def _overhead(rows: Iterable[Row]) -> str:
    own = [row for row in rows if row["part"] == "overhead"]
    if not own:
        return ""
    rounds = max(row.get("rounds", 0) for row in own)
    lines = [
        "### Cost of a training step",
        "",
        "A transformer of 10.6M parameters in 150 tensors, on one CPU thread: processor time of a"
        f" step relative to the plain step of the same round, median of {rounds} rounds (lowest and"
        " highest in brackets, as a measure of the noise). The time of wandb's own process is not"
        " included.",
        "",
        "| | times the plain step |",
        "|---|---|",
    ]
    for row in own:
        if row["state"] == "ran":
            times = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        else:
            times = f"failed: {row['why']}"
        lines.append(f"| {row['words']} | {times} |")
    return "\n".join(lines) + "\n"


NOT_MADE_FOR = {
    ("picklescan", "damaged"),
    ("picklescan --strict", "damaged"),
}


def _files(rows: Iterable[Row]) -> str:
    own = [row for row in rows if row["part"] == "checkpoints"]
    if not own:
        return ""
    count = {
        kind: len({row["file"] for row in own if row["kind"] == kind})
        for kind in ("healthy", "damaged", "hostile")
    }
    speeds = sorted({row["file"] for row in own if row["kind"] == "speed"})
    lines = [
        "### Saved files",
        "",
        f"{count['hostile']} files that would run code when loaded, {count['damaged']} damaged or"
        f" with corrupted numbers, {count['healthy']} intact. Speed is processor time of the whole"
        " command including its start; picklescan reads only the pickles, not the numbers.",
        "",
        "| tool | hostile: reported | damaged: reported | intact: false alarms"
        " | intact: refused to read | " + " | ".join(speeds) + " |",
        "|---|---|---|---|---|" + "---|" * len(speeds),
    ]
    for tool in dict.fromkeys(row["tool"] for row in own):
        of = {
            kind: [row for row in own if row["tool"] == tool and row["kind"] == kind]
            for kind in (*count, "speed")
        }
        refused = [r for r in of["healthy"] if any(x.startswith("exit") for x in r["rules"])]
        alarms = [r for r in of["healthy"] if r["spoke"] and r not in refused]
        hostile = _of(sum(r["spoke"] for r in of["hostile"]), len(of["hostile"]))
        if all(r["rules"] == ["exit 1"] for r in of["hostile"]):
            hostile += ", by refusing to load; it does not say why"
        damaged = _of(sum(r["spoke"] for r in of["damaged"]), len(of["damaged"]))
        if (tool, "damaged") in NOT_MADE_FOR:
            damaged = "n/a: it looks at pickles alone"
        cells = [
            tool,
            hostile,
            damaged,
            _of(len(alarms), len(of["healthy"])),
            _of(len(refused), len(of["healthy"])),
        ]
        cells += [
            next((f"{r['seconds']:.1f} s" for r in of["speed"] if r["file"] == file), "as above")
            for file in speeds
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *_missed(own)]
    return "\n".join(lines) + "\n"


def _missed(own: list[Row]) -> list[str]:
    lines = []
    for tool in dict.fromkeys(row["tool"] for row in own):
        missed = [
            f"`{row['file']}`"
            for row in own
            if row["tool"] == tool
            and row["kind"] in ("damaged", "hostile")
            and not row["spoke"]
            and (tool, row["kind"]) not in NOT_MADE_FOR
        ]
        alarms = [
            f"`{row['file']}`"
            for row in own
            if row["tool"] == tool and row["kind"] == "healthy" and row["spoke"]
        ]
        if missed:
            lines.append(f"- {tool} misses {', '.join(missed)}.")
        if alarms:
            lines.append(f"- {tool} reports, or refuses, {', '.join(alarms)}.")
    return lines
