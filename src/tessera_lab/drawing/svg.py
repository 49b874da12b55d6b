"""A small writer of SVG: elements, texts with an estimated width, and axes with round numbers. Pure.

A drawing is readable on light and dark backgrounds, within a page or alone.

Hand-written: matplotlib takes 150 MB on disk with its dependencies, and its import 0.6 s of CPU. Three kinds of bars
need little of it.
"""

import math
import re
from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from tessera.text import html as escape

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
