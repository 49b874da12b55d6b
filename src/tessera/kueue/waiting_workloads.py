"""Reads what waits in Kueue in all namespaces: two lists, and the places in the queues of some of the namespaces.

What is kept and asked for is bounded. Which namespaces come first is the caller's choice; the others are counted.
A list has the order of namespaces, so one that is cut lacks those at the end of the alphabet. Some of these are listed
by themselves: those that come first, and others with a LocalQueue in turns.

A part of the room is kept for turns. Otherwise readers of many namespaces could take all of it, and others would never
learn what they may see.
"""

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tessera.kube.client import Client
from tessera.kube.errors import Forbidden, NotFound
from tessera.kueue.objects import LOCAL_QUEUES, WORKLOADS, Workload, served_resource, served_version
from tessera.kueue.positions import PositionReader, QueueReading

#: One place in so many is kept for names that take turns.
KEPT = 4


class Turns:
    """Remembers whose turn was last."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, names: Collection[str], own: Sequence[str], most: int, kept: int) -> list[str]:
        """Returns the names whose turn it is now.

        Args:
            names: those that want a place.
            own: those of present readers, each once, which come first and in this order.
            most: the number of places.
            kept: the places that others have in any case, if there are too few.
        """
        mine = [name for name in own if name in names]
        first = mine[:most] if len(names) <= most else mine[: max(0, most - kept)]
        rest = sorted(set(names) - set(first))
        begin = bisect(rest, self._last)
        turns = [*rest[begin:], *rest[:begin]][: most - len(first)]
        self._last = turns[-1] if turns else self._last
        return [*first, *turns]


#: Most workloads: waiting Workloads of all namespaces that `tessera queue -A` and the live page read; that there are
#: more is shown. Each is kept, without its pods.
KUEUE_READ = 20_000
#: Most Workloads that are listed to find these, also those that do not wait; beyond it, the page lists the namespaces
#: of its readers by themselves. 100 pages of a list, and as many for namespaces by themselves.
KUEUE_LISTED = 50_000
#: Most namespaces whose queues of Kueue `tessera queue -A` and the live page show; the number of others is shown. Each
#: takes a request for each of its queues; the page takes those of its readers first.
KUEUE_NAMESPACES = 50


class WaitingWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """The Workloads of all namespaces that wait.

    Attributes:
        installed: False if the cluster has no Kueue.
        namespaces: by namespace, its waiting Workloads with their positions; without flavors and pod sets.
        others: the number of waiting Workloads by further namespace.
        cut: True if the list was cut: after :data:`KUEUE_READ` that wait, or :data:`KUEUE_LISTED` in all.
        forbidden: True if LocalQueues may not be listed, so that no places are known.
        silent: why places are not known, in words of Tessera alone; empty if they are.
        error: what Kueue's visibility API said instead of an answer.
    """

    installed: bool = True
    namespaces: Mapping[str, QueueReading] = {}
    others: Mapping[str, int] = {}
    cut: bool = False
    forbidden: bool = False
    silent: str = ""
    error: str = ""

    @property
    def some_places(self) -> bool:
        """True if places in some of the queues are known."""
        return any(each.sizes for each in self.namespaces.values())


async def read_waiting_workloads(
    client: Client,
    places: int,
    *,
    first: Sequence[str] = (),
    turns: Turns | None = None,
    account: str = "you",
) -> WaitingWorkloads:
    """Reads what waits in all namespaces.

    Args:
        client: the user's client.
        places: places that are read of a queue.
        first: the namespaces that come before others, in this order, if there are too many.
        turns: chooses the namespaces that are listed by themselves if the list is cut; None for none.
        account: whose rights the client has: ``you``.

    Raises:
        Forbidden: the user may not list Workloads of all namespaces.
        ApiError: the server refused for another reason.
    """
    try:
        version = await served_version(client)
        everything = await _list_waiting(client, version, None, most=KUEUE_READ, listed=KUEUE_LISTED)
    except NotFound:
        return WaitingWorkloads(installed=False)
    found, cut = everything.waiting, everything.cut
    queues = await _list_queues(client, version) if found or cut else {}
    if cut and turns is not None:
        unread = {*first, *(queues or {})} - everything.complete
        names = turns.choose(unread, first, KUEUE_NAMESPACES, KUEUE_NAMESPACES // KEPT)
        for name, each in (await _list_each(client, version, names[::-1])).items():
            found[name] = max(found.get(name, []), each, key=len)
    chosen = [*dict.fromkeys(name for name in (*first, *sorted(found)) if name in found)][:KUEUE_NAMESPACES]
    known = {namespace: frozenset((queues or {}).get(namespace, ())) for namespace in chosen}
    asked = {name: sorted({each.spec.queue_name for each in found[name]} & known[name]) for name in chosen}
    positions = PositionReader(client, places, account)
    read = await positions.read(asked)
    readings = {
        namespace: QueueReading(
            workloads=found[namespace],
            queues=known[namespace],
            positions=read[namespace].places,
            sizes=read[namespace].sizes,
            silent=read[namespace].silent,
        )
        for namespace in chosen
    }
    return WaitingWorkloads(
        namespaces=readings,
        others={name: len(found[name]) for name in sorted(found.keys() - readings.keys())},
        cut=cut,
        forbidden=queues is None,
        silent=positions.silent,
        error=positions.error,
    )


class _Part(NamedTuple):
    """What was read of a list.

    Attributes:
        waiting: the waiting Workloads by namespace.
        complete: the namespaces of which all Workloads were read, as far as some were.
        listed: the number of Workloads, also of those that do not wait.
        cut: True if there are more.
    """

    waiting: dict[str, list[Workload]]
    complete: set[str]
    listed: int
    cut: bool


async def _list_waiting(client: Client, version: str, namespace: str | None, *, most: int, listed: int) -> _Part:
    """Lists Workloads in the order of their namespaces until so many wait, or so many are listed."""
    found: dict[str, list[Workload]] = {}
    names: set[str] = set()
    waiting, count, last, token = 0, 0, "", ""
    while True:
        page = await client.page(served_resource(WORKLOADS, version), namespace, token=token)
        for each in page.items:
            last = each.metadata.namespace
            names.add(last)
            if each.waits:
                waiting += 1
                found.setdefault(last, []).append(_without_pods(each))
        count += len(page.items) + len(page.undecodable)
        token = page.token
        if not token or waiting >= most or count >= listed:
            return _Part(found, names - {last} if token else names, count, bool(token))


async def _list_each(client: Client, version: str, names: Sequence[str]) -> dict[str, list[Workload]]:
    """The waiting Workloads of these namespaces, each listed alone; what one leaves of the bound is for the next."""
    found: dict[str, list[Workload]] = {}
    left = int(KUEUE_LISTED)
    for number, name in enumerate(names):
        part = left // (len(names) - number)
        read = await _list_waiting(client, version, name, most=KUEUE_READ // KUEUE_NAMESPACES, listed=part)
        found |= read.waiting
        left -= min(left, read.listed)
    return found


def _without_pods(item: Workload) -> Workload:
    """The same without pod templates, which are most of its size."""
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, pod_sets=()))


async def _list_queues(client: Client, version: str) -> dict[str, list[str]] | None:
    """Names of LocalQueues by namespace; None if they may not be listed."""
    found: dict[str, list[str]] = {}
    try:
        for each in (await client.list(served_resource(LOCAL_QUEUES, version))).items:
            found.setdefault(each.metadata.namespace, []).append(each.metadata.name)
    except Forbidden:
        return None
    return found
