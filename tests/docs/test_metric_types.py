"""A page says which names are counters, histograms and gauges, as the program declares them."""

import re
from pathlib import Path

from tessera.signals.page import SIGNALS

ROOT = Path(__file__).parents[2]
DECLARED = re.compile(r'\b(Counter|Gauge|Histogram)(?:MetricFamily)?\(\s*"(tessera_\w+)"')
PAGE = (ROOT / "docs" / "own-metrics.md").read_text(encoding="utf-8")
#: The first cells of rows about metrics: their names.
ROWS = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `tessera_")]


def declared_types() -> dict[str, str]:
    """The type of each metric by its name in an exposition."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "tessera").rglob("*.py"))
    found = [match for text in sources for match in DECLARED.findall(text)]
    found += [("Gauge", name) for name in SIGNALS]
    return {f"{name.removesuffix('_total')}_total" if kind == "Counter" else name: kind.lower() for kind, name in found}


def type_of(name: str) -> str:
    """The type by the rule that the page states."""
    gauges = {"tessera_oldest_wait_seconds", "tessera_image_ready_seconds", *SIGNALS}
    if name.endswith("_seconds") and name not in gauges:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


def test_each_metric_of_the_page_has_the_type_of_its_name() -> None:
    types = declared_types()
    names = [name for row in ROWS for name in re.findall(r"`(tessera_\w+)`", row)]
    assert len(names) > 30
    assert {name: types[name] for name in names} == {name: type_of(name) for name in names}
