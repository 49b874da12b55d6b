"""Reads the text of ``/metrics``."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

Rows = list[tuple[dict[str, str], float]]


def _rows(text: bytes, name: str) -> Rows:
    return [
        (dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        # The parser adds the ending that dcgm-exporter's counters lack; Prometheus does not.
        if sample.name in {name, f"{name}_total"}
    ]


@pytest.fixture
def rows() -> Callable[[bytes, str], Rows]:
    """Returns (labels, value) of each row of a series."""
    return _rows
