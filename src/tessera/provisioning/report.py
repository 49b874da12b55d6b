"""Groups records by common properties and computes numbers for each phase. Pure.

Each number comes with its n: if a phase of a record is unknown, the record is left out of that phase's numbers only.
Records of nodes that were lost before their GPUs were usable are counted, not averaged: their times are lower bounds.

Records come from files: lines of JSON as in the ConfigMap, the ConfigMap itself as kubectl prints it (YAML or JSON), a
list of records, or the output of ``tessera provisioning report -o json``.

Others write these files. So a file with more characters than `REPORT_TEXT` is refused, and so is YAML whose aliases
would expand to a very large document; the check runs before the expansion.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import Any

import msgspec

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.limits import Limit
from tessera.nesting import TooDeepError, decode_json
from tessera.provisioning.history import RECORDS_KEY, WORKLOADS_KEY, decode_record, decode_workload
from tessera.provisioning.milestones import (
    ORDER,
    TOTALS,
    Milestone,
    ProvisioningRecord,
    Span,
    WorkloadRecord,
    WorkloadStep,
    node_phases,
    span_seconds,
    workload_steps,
    workload_wait,
)
from tessera.provisioning.start_times import needed_samples, quantile
from tessera.text import count_noun

REPORT_TEXT = Limit(
    16 * 2**20,
    "characters",
    "a file of provisioning records or results",
    "more than 10,000 nodes with a record each",
)
REPORT_RECORD = Limit(
    10_000,
    "values and characters",
    "one record of such a file",
    "a full record has less than a tenth of it",
)

_TOO_DEEP = "is nested too deeply to be records"


def read_records(text: str, name: str) -> tuple[ProvisioningRecord, ...]:
    """The records in a file.

    Args:
        text: its content.
        name: name of the file, for messages.

    Raises:
        ValueError: the file has no records, or one is broken; the text names file, line and mistake.
    """
    if len(text) > REPORT_TEXT:
        raise ValueError(f"{name}: has {len(text):,} characters; {REPORT_TEXT} are allowed, give fewer records")
    found = []
    for place, line in _lines(text, name):
        try:
            found.append(decode_record(line))
        except ValueError as error:
            raise ValueError(f"{name}, {place}: {error}") from None
    return tuple(found)


def read_workloads(text: str, name: str) -> tuple[WorkloadRecord, ...]:
    """The records of pods in a file; only the ConfigMap and the output of ``-o json`` contain any.

    Raises:
        ValueError: one of them is broken.
    """
    loaded = _load(text, name)
    if not isinstance(loaded, dict):
        return ()
    data = loaded.get("data")
    kept = data.get(WORKLOADS_KEY) if isinstance(data, dict) else None
    listed = loaded.get("workloads")
    lines = _number_lines(kept) if isinstance(kept, str) else []
    if isinstance(listed, list):
        lines = _lines_of(listed, "workload", name)
    found = []
    for place, line in lines:
        try:
            found.append(decode_workload(line))
        except ValueError as error:
            raise ValueError(f"{name}, {place}: {error}") from None
    return tuple(found)


def _lines(text: str, name: str) -> Iterable[tuple[str, str]]:
    loaded = _load(text, name)
    if loaded is None:
        return _number_lines(text)
    if isinstance(loaded, dict) and "node" in loaded:
        return [("line 1", text)]
    return _list_entries(loaded, name)


def _load(text: str, name: str) -> Any:
    """The file as one value; None if it is several lines of JSON."""
    try:
        return decode_json(text)
    except TooDeepError:
        raise ValueError(f"{name}: {_TOO_DEEP}") from None
    except msgspec.DecodeError:
        return None if text.lstrip().startswith("{") else _yaml(text, name)


def _number_lines(text: str) -> list[tuple[str, str]]:
    return [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _list_entries(loaded: Any, name: str) -> list[tuple[str, str]]:
    data = loaded.get("data") if isinstance(loaded, dict) else None
    if isinstance(data, dict) and isinstance(data.get(RECORDS_KEY), str):
        return [(f"{RECORDS_KEY}, {place}", line) for place, line in _number_lines(data[RECORDS_KEY])]
    records = loaded.get("records") if isinstance(loaded, dict) else loaded
    if not isinstance(records, list):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not the call
            f"{name}: holds no records; give the ConfigMap provisioning-records (kubectl get configmap"
            " -n tessera-system provisioning-records -o yaml), lines of JSON, or what -o json printed"
        )
    return _lines_of(records, "record", name)


def _lines_of(values: list[Any], kind: str, name: str) -> list[tuple[str, str]]:
    lines, characters = [], 0
    for number, each in enumerate(values, start=1):
        line = _line(each, name)
        characters += len(line)
        if characters > REPORT_TEXT:
            raise ValueError(f"{name}: expands to too much: {REPORT_TEXT} are allowed; give fewer records")
        lines.append((f"{kind} {number}", line))
    return lines


def _line(value: Any, name: str) -> str:
    left, todo = int(REPORT_RECORD), [value]
    while todo:
        each = todo.pop()
        parts = [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, (list, tuple)) else ()
        left -= len(each) if isinstance(each, (str, bytes)) else 1 + len(parts)
        if left < 0:
            raise ValueError(f"{name}: has a record that is too long: {REPORT_RECORD} are allowed")
        todo += parts
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, RecursionError):  # YAML has sets, and objects that contain themselves
        raise ValueError(f"{name}: has an entry that is no record") from None


def _yaml(text: str, name: str) -> Any:
    try:
        return load_document(text, limited=False)
    except FileRefused as error:
        raise ValueError(f"{name}: {' '.join(str(error).split())[:200]}") from None


#: The quantiles that the report shows.
SHARES = (0.50, 0.90, 0.99)
#: Text for an empty name.
UNKNOWN = "unknown"


class By(Enum):
    """A property by which records are grouped."""

    STRATEGY = "strategy"
    POOL = "pool"
    IMAGE = "image"
    GROUP = "group"


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of seconds.

    Attributes:
        n: number of values; without values there are no numbers.
        mean: arithmetic mean.
        p50: half of the values are at most this; interpolated between neighbours.
        p90: 90 % of the values are at most this.
        p99: 99 % of the values are at most this; a guess if n is small, see ``supported``.
        supported: True if n suffices to bound the 99th percentile from above with 95 % confidence.
    """

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    supported: bool = False


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of a mean time.

    Attributes:
        part: beginning and end, a name of :class:`~tessera.provisioning.milestones.Span`.
        n: records in which both ends are known.
        mean: seconds.
        phases: mean seconds by phase; with ``unknown`` they sum to the mean.
        unknown: mean seconds that lie in phases that are unknown.
    """

    part: str
    n: int
    mean: float
    phases: Mapping[str, float]
    unknown: float


class ProvisioningSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Records that have something in common.

    Attributes:
        name: the group's value of each property: ``{"strategy": "built"}``.
        records: number of records.
        lost: nodes that were removed before their GPUs were usable.
        simulated: number of records from the lab.
        late: nodes that stood there before anybody asked for their driver; only what follows that is measured of them.
        phases: numbers by phase, in the order of the phases.
        totals: numbers of sums of phases: ``total``, ``total-startup`` and so on.
        stack: the phases of the mean time; None if too little is known.
    """

    name: Mapping[str, str]
    records: int
    lost: int
    simulated: int
    late: int = 0
    phases: Mapping[str, Numbers]
    totals: Mapping[str, Numbers]
    stack: Stack | None = None

    @property
    def title(self) -> str:
        """The name in a line."""
        return ", ".join(self.name.values()) or "all nodes"


def numbers(values: Sequence[float]) -> Numbers:
    """The numbers of a sample."""
    if not values:
        return Numbers(n=0)
    p50, p90, p99 = (quantile(values, share) for share in SHARES)
    supported = len(values) >= needed_samples(SHARES[-1])
    return Numbers(n=len(values), mean=fmean(values), p50=p50, p90=p90, p99=p99, supported=supported)


def summaries(
    records: Iterable[ProvisioningRecord], by: Sequence[By], part: Span | None = None
) -> tuple[ProvisioningSummary, ...]:
    """The records in groups, the largest first.

    Args:
        records: all records.
        by: the properties by which records are grouped; without any, all are one group.
        part: the span whose phases are shown; None takes the span that is known for most records.
    """
    groups: dict[tuple[str, ...], list[ProvisioningRecord]] = {}
    every = list(records)
    for record in every:
        groups.setdefault(tuple(_group_name(record, each) for each in by), []).append(record)
    best = part or best_span(every)
    names = [each.value for each in by]
    found = [_summary(dict(zip(names, key, strict=True)), own, best) for key, own in groups.items()]
    return tuple(sorted(found, key=lambda each: (-each.records, each.title)))


class WorkloadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that request GPUs, from their creation to their first container's start.

    Attributes:
        fresh: True if their node was made while they waited; False if they found an existing node.
        pods: number of pods.
        simulated: number of pods from the lab.
        steps: numbers by step, in the sequence of the steps; a step that did not happen took no time.
        total: numbers from creation to start.
    """

    fresh: bool
    pods: int
    simulated: int
    steps: Mapping[str, Numbers]
    total: Numbers

    @property
    def title(self) -> str:
        """A line that describes these pods."""
        return "pods whose node came up for them" if self.fresh else "pods that found a node"


def workload_summaries(records: Iterable[WorkloadRecord]) -> tuple[WorkloadSummary, ...]:
    """Summaries of pods; those whose node was made for them come first."""
    every = list(records)
    kinds = [(fresh, [each for each in every if each.fresh is fresh]) for fresh in (True, False)]
    return tuple(_workload_summary(fresh, own) for fresh, own in kinds if own)


def _workload_summary(fresh: bool, records: Sequence[WorkloadRecord]) -> WorkloadSummary:
    ways = [workload_steps(each) for each in records]
    return WorkloadSummary(
        fresh=fresh,
        pods=len(records),
        simulated=sum(1 for each in records if each.simulated),
        steps={
            each.value: numbers([s for way in ways if (s := way.get(each)) is not None])
            for each in list(WorkloadStep)[1:]
        },
        total=numbers([took for each in records if (took := workload_wait(each)) is not None]),
    )


def best_span(records: Sequence[ProvisioningRecord]) -> Span:
    """The span that is known for most records; of several, the longest."""
    order = (Span.TOTAL, Span.PROVISIONED, Span.READY_TO_WORKLOAD, Span.STARTUP, Span.AFTER_LABELLED)
    return max(order, key=lambda part: sum(1 for each in records if span_seconds(each, part) is not None))


def _group_name(record: ProvisioningRecord, by: By) -> str:
    if by is By.IMAGE:
        return record.short_image
    return str(getattr(record, by.value)) or UNKNOWN


def _summary(name: Mapping[str, str], records: Sequence[ProvisioningRecord], part: Span) -> ProvisioningSummary:
    whole = [each for each in records if each.lost is None]
    phases = [node_phases(each).seconds for each in whole]
    return ProvisioningSummary(
        name=name,
        records=len(records),
        lost=len(records) - len(whole),
        simulated=sum(1 for each in records if each.simulated),
        late=sum(1 for each in records if each.late),
        phases={each.value: numbers([s for one in phases if (s := one[each]) is not None]) for each in ORDER[1:]},
        totals={
            title: numbers([s for each in whole if (s := span_seconds(each, sums)) is not None])
            for title, sums in TOTALS.items()
        },
        stack=_stack(whole, part),
    )


def _stack(records: Sequence[ProvisioningRecord], part: Span) -> Stack | None:
    took = [(each, seconds) for each in records if (seconds := span_seconds(each, part)) is not None]
    if not took:
        return None
    first, last = (ORDER.index(each) for each in part.value)
    between = ORDER[first + 1 : last + 1]
    known = [node_phases(each).seconds for each, _ in took]
    means = {each: sum(one[each] or 0.0 for one in known) / len(took) for each in between}
    mean = fmean(seconds for _, seconds in took)
    return Stack(
        part=part.name.lower().replace("_", "-"),
        n=len(took),
        mean=mean,
        phases={each.value: seconds for each, seconds in means.items()},
        unknown=max(0.0, mean - sum(means.values())),
    )


def part_text(part: str) -> str:
    """A span in words: ``requested to workload``."""
    first, last = Span[part.upper().replace("-", "_")].value
    return f"{_WORDS[first]} to {_WORDS[last]}"


_WORDS = {
    Milestone.REQUESTED: "request for the node",
    Milestone.REGISTERED: "node registered",
    Milestone.READY: "node Ready",
    Milestone.LABELLED: "facts known",
    Milestone.ALLOCATABLE: "cards given out",
    Milestone.WORKLOAD: "workload running",
}


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
