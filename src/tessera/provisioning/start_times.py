"""Times of one node group, from Tessera's own records or from a file of other measurements, and their statistics.

Three durations matter to an autoscaler, each begun where one of its timers begins:

* ``provision``: from the request to a usable GPU; against ``maxNodeProvisionTime``;
* ``startup``: from the node's registration to a usable GPU; against ``maxNodeStartupTime``;
* ``ready``: from the node's Ready condition to a usable GPU; against ``unneededTime`` and ``delayAfterAdd``.

A record that lacks a moment gives no value for the durations around it. A node that was removed before its GPUs were
usable gives only its lifetime. The remaining nodes are the quick ones, so if nodes were lost, the measured times are
too short. Files may be CSV with a header, or JSON: a list of objects. Columns are ``group`` and any of the three
durations in seconds.

Times to a GPU are few (a node costs money) and skewed (one slow pull). So quantiles are bounded without assuming any
distribution, and a quantile that the sample cannot support is marked as such. The statistics are hand-written: scipy
1.17 with numpy takes 216 MB on disk, and its import 0.8 s of CPU and 100 MiB of memory, for four functions.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.problems import FileRefused, ProblemCollector
from tessera.limits import ECHOED, Limit
from tessera.nesting import decode_json
from tessera.provisioning.milestones import Milestone, ProvisioningRecord

SAMPLE_ROWS = Limit(
    100_000,
    "rows",
    "rows of a file of start times for `advise`, and records that are read of a cluster",
    "years of an autoscaler's work; each is sorted",
)

DURATIONS = ("provision", "startup", "ready")
#: Seconds; no node takes longer to start, so a larger number was in another unit.
A_WEEK = 7 * 86_400
#: The beginning of each duration; all end with usable GPUs.
_BEGINS = {"provision": Milestone.REQUESTED, "startup": Milestone.REGISTERED, "ready": Milestone.READY}


class GroupTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The measured times of one node group, seconds.

    Attributes:
        group: its name; empty if not given.
        provision: request to usable GPU.
        startup: registration to usable GPU.
        ready: Ready to usable GPU.
        lost: lifetimes of nodes that were removed before their GPUs were usable: from request, or registration, to
            removal.
        simulated: True if some of the times come from the lab.
    """

    group: str
    provision: tuple[float, ...] = ()
    startup: tuple[float, ...] = ()
    ready: tuple[float, ...] = ()
    lost: tuple[float, ...] = ()
    simulated: bool = False


def from_records(records: Iterable[ProvisioningRecord]) -> tuple[GroupTimes, ...]:
    """Times from provisioning records, by group."""
    rows: list[dict[str, Any]] = []
    for record in records:
        row: dict[str, Any] = {"group": record.group, "simulated": record.simulated}
        usable = record.at.get(Milestone.ALLOCATABLE)
        for name, begin in _BEGINS.items():
            began = record.at.get(begin)
            # Clocks of two machines may differ slightly; a negative duration counts as unknown.
            if usable is not None and began is not None and usable >= began:
                row[name] = usable - began
        began = record.at.get(Milestone.REQUESTED, record.at.get(Milestone.REGISTERED))
        if record.lost is not None and began is not None and record.lost >= began:
            row["lost"] = record.lost - began
        rows.append(row)
    return _group_rows(rows)


def from_file(text: str) -> tuple[GroupTimes, ...]:
    """Reads times from a file.

    Raises:
        FileRefused: the file has mistakes; all of them are listed.
    """
    found = ProblemCollector()
    rows = [row for row in (_check_row(found, row, at) for at, row in _rows(found, text)) if row]
    if not found.problems and not rows:
        found.add("", f"has no rows; write one row a node with group and any of {', '.join(DURATIONS)}, in seconds")
    found.raise_problems()
    return _group_rows(rows)


def _rows(found: ProblemCollector, text: str) -> Iterable[tuple[str, Any]]:
    if text.lstrip()[:1] in {"[", "{"}:
        try:
            loaded = decode_json(text)
        except msgspec.DecodeError as error:
            found.add("", f"is no JSON: {error}")
            return []
        items = loaded if isinstance(loaded, list) else [loaded]
        rows = [(f"[{place}]", item) for place, item in enumerate(items)]
    else:
        try:
            rows = [(f"line {place}", row) for place, row in enumerate(csv.DictReader(io.StringIO(text)), start=2)]
        except csv.Error as error:
            found.add("", f"is no CSV: {error}")
            return []
    if len(rows) > SAMPLE_ROWS:
        found.add("", f"has {len(rows):,} rows; {SAMPLE_ROWS} are allowed, give the latest")
        return []
    return rows


def _check_row(found: ProblemCollector, row: Any, at: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        found.add(at, f"must be an object with group and any of {', '.join(DURATIONS)}")
        return {}
    for name in row:
        if name not in {"group", "simulated", *DURATIONS}:
            found.add(at, f'"{name}" is none of group, simulated, {", ".join(DURATIONS)}')
    made: dict[str, Any] = {
        "group": str(row.get("group") or ""),
        "simulated": str(row.get("simulated") or "").lower() in {"true", "1", "yes"},
    }
    for name in DURATIONS:
        if row.get(name) not in (None, ""):
            made[name] = _seconds(found, row[name], f"{at}.{name}")
    return made


def _seconds(found: ProblemCollector, value: Any, at: str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds <= A_WEEK:
        found.add(at, f"must be from 0 to {A_WEEK:,} seconds, not {str(value)[:ECHOED]!r}")
        return 0.0
    return seconds


def _group_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[GroupTimes, ...]:
    made = []
    for group in sorted({row["group"] for row in rows}):
        own = [row for row in rows if row["group"] == group]
        times = {name: tuple(row[name] for row in own if name in row) for name in DURATIONS}
        lost = tuple(row["lost"] for row in own if "lost" in row)
        made.append(GroupTimes(group=group, lost=lost, simulated=any(row["simulated"] for row in own), **times))
    return tuple(made)


def refusal_lines(name: str, error: FileRefused) -> tuple[str, ...]:
    """The lines that a user reads about a refused file."""
    return (f"{name} has mistakes:", *(f"  {problem}" for problem in error.problems[:20]))


#: Confidence of all intervals and bounds.
CONFIDENCE = 0.95


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the sample lies, interpolated between neighbours (R's type 7).

    Raises:
        ValueError: the sample is empty, or the share is not within 0 and 1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"quantile {share} of {len(values)} values: needs a value, and a share from 0 to 1")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def upper_bound(values: Sequence[float], share: float, confidence: float = CONFIDENCE) -> float | None:
    """A value that is at least the true quantile, for any distribution, at this confidence.

    It is the smallest order statistic with that property: the k-th of n is below the quantile only if at least k
    values are, which has a binomial probability.

    Returns:
        None if even the greatest value does not suffice: ``n`` is less than :func:`needed_samples`.
    """
    ordered = sorted(values)
    n = len(ordered)
    best, above = None, 0.0
    for k in range(n, 0, -1):  # from the greatest on, since the wanted one is near it
        above += _exactly(k, n, share)
        if above > 1 - confidence + 1e-12:
            break
        best = ordered[k - 1]
    return best


def needed_samples(share: float, confidence: float = CONFIDENCE) -> int:
    """The fewest values with which :func:`upper_bound` exists: 59 for p95, 299 for p99, at 95 %."""
    return math.ceil(math.log(1 - confidence) / math.log(share) - 1e-9)


def supported_share(n: int, confidence: float = CONFIDENCE) -> float:
    """The highest quantile that ``n`` values can bound: 0.95 for 59; 0 for none."""
    return (1 - confidence) ** (1 / n) if n else 0.0


def at_most(k: int, n: int, share: float) -> float:
    """Probability of at most ``k`` successes in ``n`` trials, each with the chance ``share`` (not 0 and not 1)."""
    return math.fsum(_exactly(i, n, share) for i in range(k + 1))


def _exactly(k: int, n: int, share: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(share) + (n - k) * math.log1p(-share))
