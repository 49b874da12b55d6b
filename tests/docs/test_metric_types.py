"""A page names the type of each metric of Tessera's own work, as the program declares it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECLARED = re.compile(r'\b(Counter|Gauge|Histogram)(?:MetricFamily)?\(\s*"(tessera_\w+)"')
PAGE = (ROOT / "docs" / "own-metrics.md").read_text(encoding="utf-8")
#: The cells of rows about metrics: names, type, labels, meaning.
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| `tessera_")
]


def declared_types() -> dict[str, str]:
    """The type of each metric by its name in an exposition."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "tessera").rglob("*.py"))
    found = [match for text in sources for match in DECLARED.findall(text)]
    return {f"{name.removesuffix('_total')}_total" if kind == "Counter" else name: kind.lower() for kind, name in found}


def test_each_metric_of_the_page_has_its_type() -> None:
    types = declared_types()
    assert len(ROWS) > 30
    for names, written, *_ in ROWS:
        expected = dict.fromkeys(types[name] for name in re.findall(r"`(tessera_\w+)`", names))
        assert written == ", ".join(expected), names
