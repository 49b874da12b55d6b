"""The charts: the phases of a mean time to a GPU, and the two bar charts of experiments. Pure.

Every drawing of values from the lab contains the word "simulated", so the word stays with the drawing wherever it is
copied.

A small writer of SVG makes elements, texts with an estimated width, and axes with round numbers.

A drawing is readable on light and dark backgrounds, within a page or alone.

Hand-written: matplotlib takes 150 MB on disk with its dependencies, and its import 0.6 s of CPU. Three kinds of bars
need little of it.
"""

import math
import re
from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from tessera.provisioning.milestones import ORDER
from tessera.provisioning.report import ProvisioningSummary, Stack, part_text, seconds
from tessera.text import html as escape
from tessera_lab.experiments.results import AUTOSCALE, POLICY_RESET, Samples, red_hats
from tessera_lab.limits import REPORT_BARS

#: Width of a sans-serif character as a share of its size: a little more than the average of Latin texts.
_WIDTH = 0.56
#: Size of texts, pixels.
SIZE = 13

#: Colours of phases and series that colour-blind readers can distinguish, on both backgrounds (after Okabe and Ito, and
#: Tol's muted scheme), and whether text on them is dark.
PALETTE = (
    ("#4477aa", False),
    ("#ee7733", True),
    ("#228833", False),
    ("#ccbb44", True),
    ("#aa3377", False),
    ("#66ccee", True),
    ("#bbbbbb", True),
    ("#882255", False),
    ("#009988", False),
    ("#ee99aa", True),
)

# Written out twice instead of with CSS variables, which viewers of single drawings do not support.
STYLE = """
svg{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;font-size:13px}
.ground{fill:#ffffff}.text{fill:#1b1f24}.title{font-size:16px;font-weight:600;fill:#1b1f24}.soft{fill:#57606a}
.line{stroke:#d0d7de}.axis{stroke:#57606a}.light{fill:#ffffff}.dark{fill:#1b1f24}.value{font-weight:600}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.text,.title{fill:#e6edf3}.soft{fill:#9da7b3}
.line{stroke:#3a424c}.axis{stroke:#9da7b3}}
""".replace("\n", "")


def element(name: str, *children: str, **attributes: object) -> str:
    """One element; attribute names take ``_`` for ``-`` and lose one at the end (``class_``)."""
    pairs = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_text(value))}" for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{''.join(children)}</{name}>" if children else f"<{name}{pairs}/>"


def text(content: str, x: float, y: float, *, anchor: str = "start", class_: str = "text", whole: str = "") -> str:
    """One line of text; ``y`` is its base line, ``whole`` the full text, shown while the pointer is on it."""
    drawn = element("text", escape(content), x=x, y=y, text_anchor=anchor, class_=class_)
    return element("g", element("title", escape(whole)), drawn) if whole and whole != content else drawn


def drawing(width: float, height: float, title: str, *children: str) -> str:
    """A whole drawing; it scales with its container, and its title is read by screen readers."""
    return element(
        "svg",
        element("title", escape(title)),
        element("style", STYLE),
        element("rect", width=width, height=height, class_="ground"),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        width=width,
        height=height,
        role="img",
    )


def width_of(content: str, size: float = SIZE) -> float:
    """The estimated width of a text, pixels."""
    return len(content) * size * _WIDTH


def cut(content: str, width: float) -> str:
    """The text, cut to about this width."""
    most = max(1, int(width / (SIZE * _WIDTH)))
    return content if len(content) <= most else content[: most - 1] + "…"


def elide(content: str, width: float) -> str:
    """The text, cut to about this width in the middle, since long names differ at their ends."""
    most = max(1, int(width / (SIZE * _WIDTH)))
    if len(content) <= most:
        return content
    end = (most - 1) // 2
    return f"{content[: most - 1 - end]}…{content[len(content) - end :]}"


def wrap(content: str, width: float, most: int = 3) -> list[str]:
    """Breaks a text into lines of about this width, at spaces and after hyphens.

    Text that does not fit in ``most`` lines is cut.
    """
    lines: list[str] = []
    for piece in re.findall(r"[^\s-]*-+|[^\s-]+|\s+", content.strip()):
        if lines and width_of(lines[-1] + piece.rstrip()) <= width:
            lines[-1] += piece
        elif piece.strip():
            lines.append(piece)
    lines = [line.strip() for line in lines]
    rest = lines[most:]
    if rest:
        lines = [*lines[: most - 1], f"{lines[most - 1]} {' '.join(rest)}"]
    return [cut(line, width) for line in lines]


def ticks(highest: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to at least ``highest``, in about this many steps of 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def legend(entries: Sequence[tuple[str, str]], x: float, y: float, width: float) -> tuple[list[str], float]:
    """Coloured squares with their names, in as many rows as they need.

    Args:
        entries: fill and name.
        x: left edge.
        y: base line of the first row.
        width: width of the rows.

    Returns:
        The elements, and the base line of the last row.
    """
    found, place, row = [], x, y
    for fill, name in entries:
        wide = 18 + width_of(name) + 16
        if place > x and place + wide > x + width:
            place, row = x, row + 20
        found.append(element("rect", x=place, y=row - 11, width=12, height=12, rx=2, fill=fill))
        found.append(text(name, place + 18, row))
        place += wide
    return found, row


def hatching(name: str) -> str:
    """The definition of a pattern for unknown time, to be used as ``url(#name)``."""
    stripe = element("path", d="M0 6L6 0", stroke="#8b949e", stroke_width=1.5)
    ground = element("rect", width=6, height=6, fill="#8b949e", fill_opacity=0.2)
    pattern = element("pattern", ground, stripe, id=name, width=6, height=6, patternUnits="userSpaceOnUse")
    return element("defs", pattern)


def number(value: float) -> str:
    """The text of a tick, without trailing zeros."""
    return f"{value:g}" if value < 1e6 else f"{value:.0f}"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


#: Widths of a drawing on a computer's screen and on a phone's, pixels.
WIDE, NARROW = 860.0, 328.0
#: Margins of a bar chart, and minimum width of a bar with its texts.
_LEFT, _RIGHT = 64.0, 24.0
_COLUMN = 74.0
#: Limits of the width for names.
_NAMES = (150.0, 340.0)
_HATCH = "unknown-time"
#: Names of the phases in legends.
PHASES = {
    "vm": "machine",
    "registered": "join",
    "ready": "Ready",
    "labelled": "facts known",
    "pulled": "driver image",
    "driver": "driver",
    "toolkit": "toolkit",
    "validated": "validation",
    "allocatable": "cards given out",
    "workload": "workload",
}
_COLOUR = {milestone.value: colour for milestone, colour in zip(ORDER[1:], PALETTE, strict=True)}

TITLES = {
    POLICY_RESET: "Policy applied until a card is in the node's capacity",
    AUTOSCALE: "Node Ready until the GPU workload runs",
}
#: Colours of bars by operator.
_OPERATORS = {"tessera": "#228833", "reference": "#4477aa"}


def draw_stacked_bars(summaries: Sequence[ProvisioningSummary], width: float = WIDE) -> str:
    """One bar for each summary, split into its phases; empty if no phase of any summary is known."""
    every = [(each, each.stack) for each in summaries if each.stack is not None]
    rows = every[:REPORT_BARS]
    if not rows:
        return ""
    widest = max(width_of(line) for each, stack in rows for line in (*_phase_names(each), _count(each, stack)))
    left = min(_NAMES[1], width * 0.4, max(_NAMES[0], widest + 32))
    top, height = 74.0, 31.0 + 15.0 * len(_phase_names(rows[0][0]))
    scale = ticks(max(stack.mean for _, stack in rows), 5 if width == WIDE else 3)
    room = width - left - 90
    unit = room / scale[-1]
    bottom = top + height * len(rows)
    left_out = f"; the {len(rows)} of {len(every)} with most nodes" if len(every) > len(rows) else ""
    hatch = f"{_HATCH}-{width:.0f}"
    about, below = _about(rows, left_out, width)
    top += below
    bottom += below
    drawn = [text("What the time to a GPU is made of", 16, 28, class_="title"), *about]
    for tick in scale:
        x = left + tick * unit
        drawn.append(element("line", x1=x, y1=top - 8, x2=x, y2=bottom, class_="line"))
        drawn.append(text(number(tick), x, bottom + 18, anchor="middle", class_="soft"))
    drawn.append(text("seconds (mean)", left + room / 2, bottom + 38, anchor="middle", class_="soft"))
    for place, (summary, stack) in enumerate(rows):
        drawn += _bar(summary, stack, left, top + place * height, unit, hatch=hatch)
    shown = [name for name in PHASES if any(stack.phases.get(name, 0) * unit >= 0.5 for _, stack in rows)]
    entries = [(_COLOUR[name][0], PHASES[name]) for name in shown]
    unknown = any(stack.unknown * unit >= 0.5 for _, stack in rows)
    entries += [(f"url(#{hatch})", "unknown")] if unknown else []
    squares, last = legend(entries, 16, bottom + 68, width - 32)
    return drawing(width, last + 20, "What the time to a GPU is made of", hatching(hatch), *drawn, *squares)


def _phase_names(summary: ProvisioningSummary) -> list[str]:
    """A name in lines, one for each property that the records are grouped by."""
    return list(summary.name.values()) or [summary.title]


def _count(summary: ProvisioningSummary, stack: Stack) -> str:
    every = summary.simulated == summary.records
    return f"n = {stack.n}{', simulated' if every else ', partly simulated' if summary.simulated else ''}"


def _about(rows: Sequence[tuple[ProvisioningSummary, Stack]], left_out: str, width: float) -> tuple[list[str], float]:
    """The caption of the drawing, and the extra height that it needs."""
    parts = " or ".join(dict.fromkeys(part_text(stack.part) for _, stack in rows))
    every = all(summary.simulated == summary.records for summary, _ in rows)
    some = any(summary.simulated for summary, _ in rows)
    note = ", simulated" if every else ", partly simulated" if some else ""
    return _subtitle(f"{parts}, mean of the nodes of which it is known{left_out}{note}", width)


def _subtitle(content: str, width: float) -> tuple[list[str], float]:
    lines = wrap(content, width - 32, 6)
    drawn = [text(line, 16, 48 + 17 * row, class_="soft") for row, line in enumerate(lines)]
    return drawn, 17.0 * (len(lines) - 1)


def _bar(summary: ProvisioningSummary, stack: Stack, left: float, top: float, unit: float, *, hatch: str) -> list[str]:
    x, middle = left, top + 17
    drawn: list[str] = []
    for line in _phase_names(summary):
        drawn.append(text(elide(line, left - 32), left - 12, middle, anchor="end", whole=line))
        middle += 15
    drawn.append(text(_count(summary, stack), left - 12, middle + 1, anchor="end", class_="soft"))
    parts = [(name, stack.phases.get(name, 0.0)) for name in PHASES]
    for name, took in [*parts, ("", stack.unknown)]:
        wide = took * unit
        if wide <= 0:
            continue
        fill, dark = _COLOUR[name] if name else (f"url(#{hatch})", True)
        tip = element("title", f"{PHASES.get(name, 'unknown')}: {seconds(took)}")
        drawn.append(element("rect", tip, x=x, y=top + 2, width=wide, height=28.0, fill=fill))
        inside = seconds(took).removesuffix(" s")
        if name and wide > width_of(inside) + 8:
            drawn.append(text(inside, x + wide / 2, top + 21, anchor="middle", class_="dark" if dark else "light"))
        x += wide
    drawn.append(text(seconds(stack.mean), x + 8, top + 21, class_="text value"))
    return drawn


def bars(results: Sequence[Samples], experiment: str, width: float = WIDE) -> str:
    """An experiment as in the article: one bar for each scenario, as high as its mean; empty without samples.

    For simulated samples, Red Hat's means are shown beside the bars. If the width is too small for all bars, the
    function makes several drawings with one scale, and keeps bars that are compared in the same drawing.
    """
    rows = _side_by_side([each for each in results if each.experiment == experiment and each.samples])
    if not rows:
        return ""
    found = [each.summary for each in rows]
    published = [red_hats(each) or 0.0 for each in rows]
    scale = ticks(max([*published, *(each.high if each.high is not None else each.mean for each in found)]))
    most, alike = int((width - _LEFT - _RIGHT) / _COLUMN), len({each.operator for each in rows})
    most = len(rows) if width >= WIDE or most >= len(rows) else max(1, most // alike) * alike
    return "".join(_bars(rows[at : at + most], experiment, width, scale) for at in range(0, len(rows), most))


def _bars(rows: Sequence[Samples], experiment: str, width: float, scale: Sequence[float]) -> str:
    left, top, room = _LEFT, 84.0, 280.0
    unit = room / scale[-1]
    title = TITLES.get(experiment, experiment)
    kinds = {each.simulated for each in rows}
    note = ", simulated" if kinds == {True} else ", partly simulated" if True in kinds else ""
    reference_note = "; dashed: Red Hat's mean, measured by Red Hat" if any(map(red_hats, rows)) else ""
    about, below = _subtitle(f"mean and its 95 % interval; lower is better{note}{reference_note}", width)
    heads = wrap(title, (width - 32) * 0.72, 3)
    top += below + 20 * (len(heads) - 1)
    bottom, step = top + room, (width - left - _RIGHT) / len(rows)
    drawn = [text(line, 16, 28 + 20 * row, class_="title") for row, line in enumerate(heads)]
    moved = f"translate(0 {20 * (len(heads) - 1)})"
    drawn.append(element("g", *about, transform=moved))
    for tick in scale:
        y = bottom - tick * unit
        drawn.append(element("line", x1=left, y1=y, x2=width - _RIGHT, y2=y, class_="line"))
        drawn.append(text(number(tick), left - 8, y + 4, anchor="end", class_="soft"))
    axis = text("seconds", 0, 0, anchor="middle", class_="soft")
    drawn.append(element("g", axis, transform=f"translate(18 {top + room / 2:.0f}) rotate(-90)"))
    deepest = bottom
    for place, each in enumerate(rows):
        one, below = _column(each, left + step * (place + 0.5), bottom, unit, step)
        drawn += one
        deepest = max(deepest, below)
    operators = list(dict.fromkeys(each.operator for each in rows))
    entries = [(_fill(each), _operator_text(each)) for each in operators] if len(operators) > 1 else []
    squares, last = (
        legend(entries, left if width == WIDE else 8, deepest + 30, width - left) if entries else ([], deepest)
    )
    drawn.append(element("line", x1=left, y1=bottom, x2=width - _RIGHT, y2=bottom, class_="axis"))
    return drawing(width, last + 20, f"{title}{note}", *drawn, *squares)


def _side_by_side(results: Sequence[Samples]) -> list[Samples]:
    """The samples by scenario, in the sequence of the scenarios, so that compared bars are neighbours."""
    scenarios = list(dict.fromkeys(each.scenario for each in results))
    return sorted(results, key=lambda each: scenarios.index(each.scenario))


def _column(samples: Samples, middle: float, bottom: float, unit: float, step: float) -> tuple[list[str], float]:
    """One bar with its interval and texts, and the base line of the last of them."""
    found, wide = samples.summary, min(110.0, step * 0.56)
    top = bottom - found.mean * unit
    tip = element("title", f"{samples.scenario}: mean {seconds(found.mean)}, n = {found.n}")
    fill = _fill(samples.operator)
    drawn = [element("rect", tip, x=middle - wide / 2, y=top, width=wide, height=bottom - top, rx=2, fill=fill)]
    highest = top
    if found.low is not None and found.high is not None:
        low, highest = bottom - max(0.0, found.low) * unit, bottom - found.high * unit
        for x1, y1, x2, y2 in (
            (middle, highest, middle, low),
            (middle - 7, highest, middle + 7, highest),
            (middle - 7, low, middle + 7, low),
        ):
            drawn.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="axis", stroke_width=1.5))
    reference_mean = red_hats(samples)
    if reference_mean is not None:
        y, half = bottom - reference_mean * unit, min(step / 2 - 3, wide / 2 + 8)
        note = element("title", f"Red Hat's mean: {seconds(reference_mean)}")
        dashes = {"class_": "axis", "stroke_width": 2, "stroke_dasharray": "5 3"}
        drawn.append(element("line", note, x1=middle - half, y1=y, x2=middle + half, y2=y, **dashes))
        highest = min(highest, y) if highest - 26 < y else highest
    drawn.append(text(seconds(found.mean), middle, highest - 8, anchor="middle", class_="text value"))
    names = wrap(samples.scenario, step - 12)
    lines = [f"n = {found.n}{', simulated' if samples.simulated else ''}"]
    lines += [f"Red Hat {seconds(reference_mean)}"] if reference_mean is not None else []
    for row, line in enumerate(names):
        drawn.append(text(line, middle, bottom + 20 + 17 * row, anchor="middle", whole=samples.scenario))
    last = bottom + 20 + 17 * len(names)
    under = [line for each in lines for line in wrap(each, step - 4)]
    for row, line in enumerate(under):
        drawn.append(text(line, middle, last + 17 * row, anchor="middle", class_="soft"))
    return drawn, last + 17 * (len(under) - 1)


def _fill(operator: str) -> str:
    return _OPERATORS.get(operator, "#aa3377")


def _operator_text(operator: str) -> str:
    words = {"tessera": "Tessera's order of steps", "reference": "the reference operator's order of steps"}
    return words.get(operator, operator)
