"""The parts of the HTML report that are about incidents: what happened, and each bad step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.core.findings import Remedy
from headway.core.records import EventRecord
from headway.output.code_frame import edit_diff
from headway.output.html.markup import (
    Child,
    HtmlNode,
    facts_table,
    format_value,
    inline_code,
    join,
    picture,
    section,
    step_button,
    table,
    tag,
)
from headway.output.incident_view import (
    MAX_ORIGINS,
    LineView,
    OperandView,
    OriginView,
    Read,
    SamplePart,
    SampleView,
    SourceLine,
    TrialView,
    read_incident_view,
    read_samples,
    read_source_lines,
)
from headway.output.run_story import (
    IncidentGroup,
    IncidentStory,
    group_incidents,
    headline,
    run_length,
    steps_around,
    tell_incident,
    tell_story,
)
from headway.output.view import SourcedReportView, trial_text, verdict_of
from headway.rundir.chart_data import ChartData
from headway.rundir.timeline import find_step

# The verdict.

LONGEST_VERDICT = 400


def verdict_section(report: SourcedReportView, data: ChartData) -> HtmlNode:
    """The first thing on the page: what happened, in a line and in three sentences."""
    verdict = verdict_of(report)
    title = verdict.cause
    first, *more = tell_story(report, data)
    sentence = shorten_sentence(first)
    text: list[Child] = inline_code(sentence)
    if title and sentence.startswith(title):
        text = [tag("strong", title), *inline_code(sentence[len(title) :])]
    parts = [part for part in (run_length(data), verdict.counts, verdict.coverage) if part]
    line = headline(report, data)
    level_word = tag("span", verdict.word, class_="badge") if line != verdict.word else None
    level = "warning" if verdict.level in ("unsure", "unknown", "interrupted") else verdict.level
    return tag(
        "section",
        tag("h2", tag("span", line, class_="word"), level_word, class_="verdict-word"),
        tag("p", text, class_="sentence"),
        [tag("p", inline_code(shorten_sentence(told)), class_="sentence") for told in more],
        tag("p", inline_code(" · ".join(parts)), class_="quiet"),
        class_=f"verdict {level}",
        aria_label="Verdict",
    )


def shorten_sentence(sentence: str) -> str:
    """The verdict is read at a glance; the whole text follows below."""
    return sentence if len(sentence) <= LONGEST_VERDICT else f"{sentence[:LONGEST_VERDICT]}…"


# Incidents: bad steps that were re-run.

LONGEST_LINE = 300
OPERAND_COLUMNS = ("tensor", "shape", "dtype", "min", "max", "NaN", "Inf", "zeros")


def incidents_section(
    report: SourcedReportView, data: ChartData, run: Path | None, read: Read
) -> HtmlNode | None:
    """The steps that were re-run: source line, tensors, cause and tried remedies.

    `run` is the run directory, which contains the source around the line; `read` reads its files.
    """
    if not data.incidents:
        return None
    articles = []
    for group in group_incidents(data.incidents):
        lines: Sequence[SourceLine] = []
        samples: Sequence[SampleView] = []
        if run is not None:
            lines = read_source_lines(run, data.incidents, group.number, read)
            samples = read_samples(run, data.incidents, group.number, read)
        story = tell_incident(report.causes, data, group)
        articles.append(_incident(group, story, data, lines, samples))
    return section("incidents", "Incidents", articles)


def incident_id(number: int) -> str:
    """The address of an incident within the page."""
    return f"incident-{number}"


def _incident(
    group: IncidentGroup,
    story: IncidentStory,
    data: ChartData,
    lines: Sequence[SourceLine],
    samples: Sequence[SampleView],
) -> HtmlNode:
    """One entry that can be understood without the rest of the page."""
    event = group.event
    incident = read_incident_view(event.data)
    x = data.place((event.segment, event.seq), event.step)
    facts = incident.facts()
    return tag(
        "article",
        tag("h3", f"{story.title} ", step_button(x, event.step, data)),
        _repeats(group.repeats, data),
        [tag("p", inline_code(text), class_="sentence") for text in story.sentences],
        [
            _origin(origin, lines if at == 0 else ())
            for at, origin in enumerate(incident.origins[:MAX_ORIGINS])
        ],
        [_sample(sample) for sample in samples],
        _fixes(story.fixes) or _trials(incident.trials),
        _around(data, x),
        facts_table(facts) if facts else None,
        class_="cause incident",
        id=incident_id(group.number),
        tabindex="-1",
    )


def _repeats(events: Sequence[EventRecord], data: ChartData) -> HtmlNode | None:
    """The later steps with the same cause."""
    if not events:
        return None
    places = [(data.place((event.segment, event.seq), event.step), event) for event in events]
    buttons = [join(" ", step_button(x, event.step, data)) for x, event in places]
    return tag("p", "The same cause again:", buttons, class_="quiet")


def _around(data: ChartData, x: int) -> HtmlNode | None:
    """The steps before and after."""
    rows = rows_around(data, x)
    if not rows:
        return None
    marked = marked_row(data, rows, x)
    return table("Before and after", AROUND_COLUMNS, rows, numbers=(0, 1, 2), marked=marked)


def marked_row(data: ChartData, rows: Sequence[Sequence[str]], x: int) -> int | None:
    """The row of the bad step itself."""
    step = str(find_step(data.jumps, x))
    return next((at for at, row in enumerate(rows) if row[0] == step), None)


AROUND_COLUMNS = ("step", "loss", "gradient norm", "what happened")


def rows_around(data: ChartData, x: int) -> list[list[str]]:
    """The cells under `AROUND_COLUMNS`."""
    return [
        [str(find_step(data.jumps, int(place))), *rest] for place, *rest in steps_around(data, x)
    ]


def _code(lines: Sequence[SourceLine]) -> HtmlNode:
    """Source lines, the failing one marked."""
    shown = [
        tag(
            "span",
            tag("span", number, class_="number"),
            code[:LONGEST_LINE],
            class_="line bad" if bad else "line",
        )
        for number, code, bad in lines
    ]
    return tag("pre", tag("code", shown), class_="context", tabindex="0")


def _origin(origin: OriginView, lines: Sequence[SourceLine]) -> HtmlNode:
    """The op: its line, with `lines` around it, and its tensors."""
    return tag(
        "div",
        join(_place(origin.place), _code(lines)) if lines else _line(origin.place),
        _line(origin.called_from),
        tag("p", origin.where, class_="quiet"),
        _operands(origin.operands) if origin.operands else None,
        class_="place",
    )


def _sample(sample: SampleView) -> HtmlNode:
    """A failing sample: its pictures, texts and numbers."""
    return tag(
        "figure",
        tag("figcaption", tag("h4", sample.title)),
        [_sample_part(part) for part in sample.parts],
        class_="sample",
    )


def _sample_part(part: SamplePart) -> HtmlNode:
    shown: Child = tag("p", part.text, class_="mono") if part.text else None
    if part.picture:
        shown = picture(part.picture, f"{part.name} as a picture")
    elif part.kind == "text":
        lines = [tag("span", line, class_="line") for line in part.lines]
        shown = tag("pre", tag("code", lines), class_="context told", tabindex="0")
    name = tag("p", tag("span", part.name, class_="mono"), f" {part.about}", class_="quiet")
    return tag("div", name, shown)


def _line(place: LineView | None) -> HtmlNode | None:
    if place is None:
        return None
    code = None
    if place.source:
        number = tag("span", place.line, class_="number")
        code = tag("pre", tag("code", number, " ", place.source))
    return join(_place(place), code)


def _place(place: LineView | None) -> HtmlNode | None:
    return tag("p", "at ", tag("span", place.at, class_="mono")) if place is not None else None


def operand_row(item: OperandView) -> list[str]:
    """The cells under `OPERAND_COLUMNS`."""
    numbers = (item.low, item.high, item.nan, item.inf, item.zero)
    return [item.name, item.shape, item.dtype, *map(format_value, numbers)]


def _operands(items: Sequence[OperandView]) -> HtmlNode:
    rows = [operand_row(item) for item in items]
    return table("Tensors of the op", OPERAND_COLUMNS, rows, numbers=(3, 4, 5, 6, 7))


def _fixes(remedies: Sequence[Remedy]) -> HtmlNode | None:
    """The trials on the failing step that a finding names."""
    return remedy_list(remedies, "Tried on this step")


def _trials(trials: Sequence[TrialView]) -> HtmlNode | None:
    if not trials:
        return None
    items = [
        tag(
            "li",
            tag("span", trial.mark, class_="mark", aria_hidden="true"),
            tag(
                "span",
                inline_code(trial.text),
                tag("span", f" {trial.outcome}", class_="tried"),
                tag("span", f" ({trial.why})", class_="quiet") if trial.why else None,
            ),
            class_={"cured": "cured", "not cured": "failed"}.get(trial.outcome),
        )
        for trial in trials
    ]
    return tag("div", tag("h4", "Tried on this step"), tag("ul", items, class_="remedies"))


# Remedies.


def remedy_list(remedies: Sequence[Remedy], title: str = "What to do") -> HtmlNode | None:
    """What to do about a finding; a fix that is an edit as a diff."""
    if not remedies:
        return None
    return tag(
        "div",
        tag("h4", title),
        tag("ul", [_remedy(item) for item in remedies], class_="remedies"),
    )


def _remedy(remedy: Remedy) -> HtmlNode:
    trial = trial_text(remedy)
    if not remedy.tested:
        kind, mark = "untested", "→"
    else:
        kind, mark = ("cured", "✓") if remedy.cured else ("failed", "✗")
    return tag(
        "li",
        tag("span", mark, class_="mark", aria_hidden="true"),
        tag(
            "span",
            inline_code(remedy.text),
            tag("span", f" {trial}", class_="tried") if trial else None,
            _diff(edit_diff(remedy.edits)),
        ),
        class_=kind,
    )


def _diff(lines: Sequence[str]) -> HtmlNode | None:
    if not lines:
        return None
    kinds = {"+": "line added", "-": "line removed"}
    shown = [tag("span", line[:LONGEST_LINE], class_=kinds.get(line[:1], "line")) for line in lines]
    return tag("pre", tag("code", shown), class_="context diff", tabindex="0")
