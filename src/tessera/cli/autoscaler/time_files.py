"""Times of node groups from files in every form in which people have them. Pure.

Rows of durations (CSV, JSON), Tessera's records (the ConfigMap, its lines, what ``tessera provisioning report -o json``
printed), and results of ``tessera bench autoscale``, whose samples run from Ready to a workload that runs.
"""

from typing import Any

import msgspec

from tessera.provisioning.advise.samples import GroupTimes, from_file, from_records
from tessera.provisioning.experiments.results import AUTOSCALE, Samples
from tessera.provisioning.history import RECORDS_KEY
from tessera.provisioning.report.reading import read_experiments, read_records


def read_times(text: str, name: str) -> tuple[GroupTimes, ...]:
    """The times in a file.

    Args:
        text: its content.
        name: for messages.

    Raises:
        FileRefused: rows have mistakes.
        ValueError: records or results have; the text names file, place and fault.
    """
    loaded = _first(text)
    if isinstance(loaded, dict) and "results" in loaded:
        return _of_results(read_experiments(text, name))
    if RECORDS_KEY in text or (isinstance(loaded, dict) and {"records", "node"} & set(loaded)):
        return from_records(read_records(text, name))
    return from_file(text)


def _first(text: str) -> Any:
    """The JSON value of the text or of its first line; the first one of a list; None for other text."""
    for part in (text, text.lstrip().partition("\n")[0]):
        try:
            loaded = msgspec.json.decode(part)
        except (msgspec.DecodeError, RecursionError):
            continue
        return loaded[0] if isinstance(loaded, list) and loaded else loaded
    return None


def _of_results(results: tuple[Samples, ...]) -> tuple[GroupTimes, ...]:
    return tuple(
        GroupTimes(group=each.scenario, ready=each.samples, simulated=each.simulated)
        for each in results
        if each.experiment == AUTOSCALE
    )
