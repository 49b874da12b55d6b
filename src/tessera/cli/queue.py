"""``tessera queue``: the pods that wait for slices, in order, with the reason and the expected start."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tessera.cli.base.connection import CommandError, cluster_options, own_namespace, report_errors
from tessera.cli.base.console import fit_terminal, say, table_lines
from tessera.cli.base.grammar import (
    Output,
    namespace_options,
    output_option,
    selected_pods,
    selector_option,
    watch_option,
)
from tessera.cli.base.live_picture import read_or_watch
from tessera.text import age, count_noun, one_line

if TYPE_CHECKING:
    from tessera.explain.kueue_rows import KueueRow, KueueRows
    from tessera.forecast.queue_page import ExpectedStart, QueuedPod
    from tessera.kube.client import Client
    from tessera.observe.queue_reading import QueueReading

_HEADER = ("NAMESPACE", "POD", "SLICES", "WAITS", "POSITION", "STARTS IN", "BASIS", "REASON", "BEFORE IT", "WHY")
_TOLD_HEADER = ("NAMESPACE", "POD", "SLICES", "WAITS", "REASON", "WHAT IT WAS TOLD")
_KUEUE_HEADER = ("NAMESPACE", "WORKLOAD", "QUEUE", "WAITS", "POSITION", "AMONG ALL", "WHY")
#: Columns that a narrow terminal does not show, the first one first.
_DROPPED = ("WHY", "BASIS", "SLICES", "BEFORE IT", "WAITS")
_KUEUE_DROPPED = ("AMONG ALL", "QUEUE", "WAITS")
#: Seconds after which the controller's answer counts as old.
_STALE = 60.0


@click.command()
@click.argument("pod", required=False, metavar="[POD]")
@namespace_options(everywhere=True)
@selector_option
@watch_option
@output_option("table")
@cluster_options
@report_errors
def command(
    *,
    pod: str | None,
    namespace: str | None,
    everywhere: bool,
    selector: str | None,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show the pods that wait for slices: position, reason, and when each is expected to start.

    WAITS counts from when the pod began to compete for room, which may be later than its creation.
    The position counts the pods of all namespaces that share a possible node with the pod, or with a pod that counts.
    STARTS IN is a range: half of such pods start before its first time, nine of ten before its last. BASIS says what
    it rests on: the deadlines of the pods before it, the history of how long such pods ran and waited, or the rate of
    starts in the last hour, of pods that had waited. Without any of these the start is unknown.

    BEFORE IT names the pods whose end makes room. The page of the controller has all this; it needs the ClusterRole
    tessera-usage-reader in tessera-system. With the ClusterRole tessera-view in the namespace, the command shows its
    pods, and aliases for the names of others. With fewer rights it shows what the pods were told by their condition
    tessera.dev/SlicePromised.

    A second table lists what waits in Kueue, also Jobs that have no pods yet.

    \b
    Examples:
      tessera queue
      tessera queue my-pod -n team
      tessera queue -A --watch
      tessera queue -A -o json | jq '.pods[] | select(.start.basis == "unknown").name'
    """
    home = own_namespace(namespace, kubeconfig, context)
    wanted = Wanted(namespace if pod is None else home, None if everywhere else home, pod, selector)
    found = read_or_watch(
        "tessera-queue",
        lambda client: read(client, wanted),
        lambda found, width: lines_of(found, width=width),
        notes=lambda found: found.notes,
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    width = 0 if output.form == "wide" else _width()
    names = (f"pod/{each.name}" for each in found.reading.page.pods)
    output.show(_plain(found), lines_of(found, width=width), names)
    for note in found.notes:
        say(note, err=True)


class Wanted(NamedTuple):
    """What is asked for.

    Attributes:
        namespace: whose pods; None for all that the user may see.
        home: the namespace that a user sees who may not see all; None if they ask for all.
        pod: the only pod to show; None for all.
        selector: labels of the pods to show; None for all.
    """

    namespace: str | None
    home: str | None
    pod: str | None = None
    selector: str | None = None


class Queues(NamedTuple):
    """The controller's queue and Kueue's, as one user sees them; of one namespace and one pod, if these are named."""

    reading: "QueueReading"
    kueue: "KueueRows"
    namespace: str | None = None
    pod: str | None = None

    @property
    def notes(self) -> Sequence[str]:
        """Names what could not be read, with the reasons."""
        return [f"note: {each}" for each in (self.reading.note, *self.kueue.notes) if each]


def _plain(found: Queues) -> dict[str, object]:
    page = found.reading.page
    plain = {"told": found.reading.told, "taken": page.taken, "pods": page.pods, "omitted": page.omitted}
    return {**plain, "spare": page.spare, "kueue": found.kueue.rows}


def _width() -> int:
    return shutil.get_terminal_size((0, 24)).columns if sys.stdout.isatty() else 0


async def read(client: "Client", wanted: Wanted) -> Queues:
    """Reads the queues as far as the user may.

    Args:
        client: the user's client.
        wanted: what is asked for.

    Raises:
        CommandError: the user may read neither the controller's page nor the pods, or there is no such pod.
    """
    import msgspec

    from tessera.clock import SystemClock
    from tessera.explain.kueue_rows import read_kueue_rows

    now = SystemClock().now()
    found, namespace = await _read_slices(client, wanted, now)
    kueue = await read_kueue_rows(client, namespace, now)
    pods = await selected_pods(client, wanted.selector, namespace, wanted.home or "default")
    if pods is not None:
        kept = tuple(row for row in found.page.pods if (row.namespace, row.name) in pods)
        found = msgspec.structs.replace(found, page=msgspec.structs.replace(found.page, pods=kept))
    if wanted.pod is None:
        return Queues(found, kueue, namespace)
    rows = tuple(row for row in found.page.pods if row.name == wanted.pod)
    omitted = 0 if rows else found.page.omitted  # the pod may be one of those
    found = msgspec.structs.replace(found, page=msgspec.structs.replace(found.page, pods=rows, omitted=omitted))
    own = tuple(row for row in kueue.rows if row.owner.rpartition("/")[2] == wanted.pod)
    if not rows and not own:
        await _check_exists(client, wanted.namespace or "default", wanted.pod)
    return Queues(found, msgspec.structs.replace(kueue, rows=own), namespace, wanted.pod)


async def _check_exists(client: "Client", namespace: str, pod: str) -> None:
    """Raises an error if there is no such pod."""
    from tessera.kube.errors import ApiError, NotFound
    from tessera.kube.resources import PODS

    try:
        await client.get(PODS, pod, namespace)
    except NotFound as error:
        raise CommandError(f'error: there is no pod "{pod}" in namespace {namespace}; -n names another') from error
    except ApiError:
        return  # the user may not know


async def _read_slices(client: "Client", wanted: Wanted, now: float) -> "tuple[QueueReading, str | None]":
    """What waits for slices, and of which namespace; a user who may not read of all reads of ``wanted.home``."""
    from tessera.forecast.queue_page import in_namespace
    from tessera.kube.errors import Forbidden
    from tessera.observe.queue_reading import QueueReading, read_queue, read_told

    namespace = wanted.namespace
    try:
        page = await read_queue(client)
    except Forbidden:
        namespace = namespace or wanted.home
        found = await _read_as_tenant(client, namespace)
        if isinstance(found, QueueReading):
            return found, namespace
        why, note = found, f"this is what the pods were told; {found}"
    else:
        if not isinstance(page, str):
            shown = page if namespace is None else in_namespace(page, [namespace])
            return QueueReading(page=shown, note=stale_note(page.age)), namespace
        why = note = page
    try:
        return await read_told(client, namespace, now, note), namespace
    except Forbidden as error:
        where = "all namespaces: name one with -n" if namespace is None else f"namespace {namespace}"
        raise CommandError(f"error: you may not list the pods of {where}; {why}") from error


def stale_note(seconds: float) -> str:
    """Says that the controller's answer is old, as after a long stop of its machine; empty if it is not.

    Args:
        seconds: its age by the controller's clock; the user's own clock may be wrong.
    """
    return f"the controller made this {age(seconds)} ago" if seconds > _STALE else ""


async def _read_as_tenant(client: "Client", namespace: str | None) -> "QueueReading | str":
    """The queue from the API for tenants; without that API, or the right to it, which roles to bind."""
    from tessera.cli.base.tenant_view import HIDDEN, HIDDEN_NAMES, READ_PAGES, describe_role, missing_right
    from tessera.dashboard.view.explanations import read_view
    from tessera.dashboard.view.objects import WAITING_PODS
    from tessera.forecast.queue_page import in_namespace
    from tessera.kube.errors import ApiError
    from tessera.observe.queue_reading import QueueReading

    if namespace is None:
        return f"to see who stands before which pod, you need {await describe_role(client, READ_PAGES)}"
    try:
        page = in_namespace((await read_view(client, WAITING_PODS, namespace)).queue, [namespace])
    except ApiError as error:
        return await missing_right(client, namespace, error)
    names = (each.node for row in page.pods for each in row.blockers)
    return QueueReading(page=page, note=HIDDEN_NAMES if any(name.startswith(HIDDEN) for name in names) else "")


def lines_of(found: Queues, *, width: int = 0) -> Iterator[str]:
    """The tables; that of Kueue only if something waits there."""
    namespace = found.namespace
    yield from queue_lines(found.reading, namespace, found.pod, width=width)
    for each in found.reading.page.spare if found.pod is None else ():
        more = "".join(f"; {text}" for text in (each.why, each.fault) if text)
        yield f"Kept spare for services of queue {each.queue}: {each.free} of {each.wanted} {each.profile}{more}"
    if found.kueue.rows:
        yield ""
        yield "In Kueue:"
        yield from kueue_lines(found.kueue.rows, found.reading.page.answered, namespace, width=width)


def kueue_lines(found: Sequence["KueueRow"], now: float, namespace: str | None, *, width: int = 0) -> Iterator[str]:
    """The table of what waits in Kueue."""
    first = 0 if namespace is None else 1
    header, rows = _KUEUE_HEADER[first:], [_kueue_cells(row, now)[first:] for row in found]
    yield from _table(header, rows, _KUEUE_DROPPED, name="WORKLOAD", width=width)


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[str], *, name: str, width: int
) -> Iterator[str]:
    """The rows as they fit a terminal."""
    columns, rows = fit_terminal(
        header, rows, names=(name, "NAMESPACE"), dropped=[each for each in dropped if each in header], width=width
    )
    yield from table_lines(
        [header[each] for each in columns], [[row[each] for each in columns] for row in rows], width=width
    )


def _kueue_cells(row: "KueueRow", now: float) -> Sequence[str]:
    position = f"{row.position}/{row.of}{'+' if row.of_more else ''}" if row.position else "-"
    name, among = row.owner or row.workload, str(row.among_all or "-")
    return (row.namespace, name, row.queue or "-", age(max(0.0, now - row.since)), position, among, row.verdict)


def queue_lines(
    found: "QueueReading", namespace: str | None, pod: str | None = None, *, width: int = 0
) -> Iterator[str]:
    """The table, or a sentence if nothing waits.

    Args:
        found: the queue.
        namespace: whose pods are shown; None for all.
        pod: the only pod that is shown; None for all.
        width: columns of the terminal; 0 for no limit.
    """
    page = found.page
    if not page.pods:
        among = f" among the first; {page.omitted:,} more wait" if page.omitted else ""
        named = "" if pod is None else f' "{one_line(pod)}"'
        where = "" if namespace is None else f" of namespace {namespace}"
        yield f"No pod{named}{where} waits for slices{among}."
        return
    header: Sequence[str] = _TOLD_HEADER if found.told else _HEADER
    now = page.answered
    rows = [_told_cells(row, now) if found.told else _cells(row, now) for row in page.pods]
    first = 0 if namespace is None else 1
    yield from _table(header[first:], [row[first:] for row in rows], _DROPPED, name="POD", width=width)
    if page.omitted:
        yield f"{count_noun(page.omitted, 'further pod')} not listed"


def _cells(row: "QueuedPod", now: float) -> Sequence[str]:
    return (
        row.namespace,
        row.name,
        _slices(row),
        age(now - row.since),
        f"{row.position}/{row.of}" if row.position else "-",
        starts_in(row.start, now),
        row.start.basis if row.start.p50 is not None else f"unknown, {row.start.starts} in the last hour",
        row.reason,
        _before(row),
        row.detail,
    )


def _told_cells(row: "QueuedPod", now: float) -> Sequence[str]:
    return (row.namespace, row.name, _slices(row), age(now - row.since), row.reason or "-", row.detail or "-")


def _slices(row: "QueuedPod") -> str:
    counts = {profile: row.profiles.count(profile) for profile in row.profiles}
    return "+".join(profile if count == 1 else f"{count}x{profile}" for profile, count in counts.items())


def starts_in(start: "ExpectedStart", now: float) -> str:
    """``4m-9m``; ``?`` if nothing is known."""
    if start.p50 is None:
        return "?"
    first = age(start.p50 - now)
    if start.p90 is None:
        return f">{first}"
    last = age(start.p90 - now)
    return first if first == last else f"{first}-{last}"


def _before(row: "QueuedPod") -> str:
    if not row.blockers:
        return "-"
    one, more = row.blockers[0], len({each.pod for each in row.blockers}) - 1
    how = "(asks first)" if row.reason == "shared-claim" else "(reserved)"
    first = f"{one.pod} on {one.node}" if one.node else f"{one.pod} {how}"
    return f"{first} and {more} more" if more else first
