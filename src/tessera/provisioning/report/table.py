"""The report's numbers as text for a terminal. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from tessera.provisioning.report.summary import Numbers, ProvisioningSummary, WorkloadSummary
from tessera.text import count_noun

_COLUMNS = ("n", "mean", "p50", "p90", "p99")
#: The text for an empty report, with the place to look at then.
NOTHING = "no records: each node that starts from now on makes one"
WHERE = (
    "--since and --group leave records out; without --file they are those of the controller, in the ConfigMap"
    " provisioning-records of the namespace that -n names"
)


def lines(summaries: Sequence[ProvisioningSummary], workloads: Sequence[WorkloadSummary] = ()) -> Iterator[str]:
    """The report, line by line."""
    if not summaries and not workloads:
        yield NOTHING
        yield WHERE
    for number, block in enumerate([*map(_block, summaries), *map(_workload_block, workloads)]):
        if number:
            yield ""
        yield from block
    if any(_has_inferred_phases(each) for each in summaries):
        yield ""
        yield "* with fewer than 299 nodes the 99th percentile is no more than the slowest few of them"


def _has_inferred_phases(summary: ProvisioningSummary) -> bool:
    return any(each.n and not each.supported for each in (*summary.phases.values(), *summary.totals.values()))


def _block(summary: ProvisioningSummary) -> Iterator[str]:
    yield f"{summary.title} ({nodes_text(summary)})"
    yield from _rows("phase", {**summary.phases, **summary.totals})


def _workload_block(summary: WorkloadSummary) -> Iterator[str]:
    yield f"{summary.title} ({pods_text(summary)})"
    yield from _rows("step", {**summary.steps, "total": summary.total})


def pods_text(summary: WorkloadSummary) -> str:
    """The number of pods in a summary, and their properties."""
    pods = count_noun(summary.pods, "pod")
    if not summary.simulated:
        return pods
    return f"{pods}, {'simulated' if summary.simulated == summary.pods else f'{summary.simulated} of them simulated'}"


def _rows(title: str, named: Mapping[str, Numbers]) -> Iterator[str]:
    yield f"  {title:<20}" + "".join(f"{column:>9}" for column in _COLUMNS)
    for name, each in named.items():
        yield f"  {name:<20}" + "".join(f"{cell:>9}" for cell in _cells(each))


def _cells(each: Numbers) -> list[str]:
    star = "" if each.supported or not each.n else "*"
    return [str(each.n), *(seconds(value) for value in (each.mean, each.p50, each.p90)), seconds(each.p99) + star]


def nodes_text(summary: ProvisioningSummary) -> str:
    """The number of nodes in a summary, and their properties: ``13 nodes, 1 lost …, simulated``."""
    parts = [count_noun(summary.records, "node")]
    if summary.simulated:
        parts.append("simulated" if summary.simulated == summary.records else f"{summary.simulated} of them simulated")
    if summary.late:
        parts.append(f"{summary.late} there before a driver was requested")
    if summary.lost:
        parts.append(f"{summary.lost} lost before their cards could be used")
    return ", ".join(parts)


def seconds(value: float | None) -> str:
    """``132 s``, with one decimal below ten; ``-`` if unknown."""
    if value is None:
        return "-"
    return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
