"""Reads what a map of the cluster's cards needs, once or whenever it changes.

A user without a right gets the map without that part: without that to the agents' pages these are missing, without the
list of pods their number.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from tessera.access.agent_pages import FleetUsage, read_fleet
from tessera.access.page_reader import PageReader
from tessera.api.instaslice import INSTASLICES, KIND_MISSING, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE, SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import AGENT_LABEL
from tessera.api.nodes.silence import silent_nodes
from tessera.clock import Clock, SystemClock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, describe_unanswered, note_unanswered
from tessera.kube.resources import NODES, PODS, Node, Pod

#: Least seconds between two readings that are handed out, and the time between two readings of the agents' pages.
PAUSE, PERIOD = 0.5, 5.0
#: Nodes without a page whose pods are listed one by one; of more, the pods of the cluster are.
_NODES_ASKED = 16
#: Seconds after which the API server counts as silent.
_PATIENCE = 10.0


class ClusterReading(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as one user may see it.

    Attributes:
        instaslices: the records of nodes with slices on demand.
        nodes: all nodes; None without the right.
        pods: all pods, or at least those without a node and those on nodes without a page; None without the right.
        fleet: the agents' pages, and the nodes that should have answered and did not; None without the right.
        unread: what the API server did not answer, in one line; empty if it answered all.
        failure: why the cluster cannot be read now; then the rest is what was read last. None if it can be.
    """

    instaslices: Sequence[Instaslice]
    nodes: Sequence[Node] | None = None
    pods: Sequence[Pod] | None = None
    fleet: FleetUsage | None = None
    unread: str = ""
    failure: Exception | None = None


async def read_cluster(
    client: Client, nodes: Sequence[str] = (), reader: PageReader | None = None, *, partly: bool = False
) -> ClusterReading:
    """Reads everything once.

    Args:
        client: the user's client.
        nodes: nodes whose agents are asked; empty for all.
        reader: reads pages as the user; None for one reading.
        partly: leave out what the API server does not answer, unless it answers for no cards at all.

    Raises:
        NotFound: the cluster lacks the kind Instaslice, and no agent shows that Tessera is there.
        Forbidden: the user may not read Instaslice objects.
    """
    failed: dict[str, str] | None = {} if partly else None
    lost: ApiError | OSError | None = None

    async def instaslices() -> Sequence[Instaslice]:
        nonlocal lost
        try:
            return (await client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items
        except (ApiError, OSError) as error:
            if isinstance(error, NotFound) and failed is not None:
                failed[INSTASLICES.plural] = KIND_MISSING
            else:
                note_unanswered(INSTASLICES.plural, error, failed)
            lost = error
            return ()

    records, listed = await asyncio.gather(instaslices(), client.list_allowed(NODES, failed=failed))
    fleet = await _pages(client, reader or PageReader(client, SystemClock()), nodes, records, listed, failed=failed)
    absent = isinstance(lost, NotFound) and fleet is not None and not (fleet.nodes or fleet.failures)
    if lost is not None and (fleet is None or absent):
        raise lost
    pods = await _read_pods(client, None if fleet is None else [each.node for each in fleet.failures], failed)
    unread = describe_unanswered(failed or {})
    return ClusterReading(instaslices=records, nodes=listed, pods=pods, fleet=fleet, unread=unread)


async def _read_pods(
    client: Client, silent: Sequence[str] | None, failed: dict[str, str] | None
) -> Sequence[Pod] | None:
    """The pods that say what the agents' pages do not: those without a node, and those on nodes without a page.

    Args:
        client: the user's client.
        silent: the nodes without a page; None if no page was read.
        failed: as :func:`note_unanswered` has it.
    """
    if silent is None or len(silent) > _NODES_ASKED:
        return await client.list_allowed(PODS, failed=failed)
    found = await asyncio.gather(
        *(client.list_allowed(PODS, field_selector=f"spec.nodeName={name}", failed=failed) for name in ("", *silent))
    )
    return None if None in found else [pod for pods in found for pod in pods or ()]


async def _pages(
    client: Client,
    reader: PageReader,
    names: Sequence[str],
    instaslices: Iterable[Instaslice],
    nodes: Iterable[Node] | None,
    *,
    failed: dict[str, str] | None = None,
) -> FleetUsage | None:
    label, value = AGENT_LABEL
    try:
        agents = (await client.list(PODS, SYSTEM_NAMESPACE, label_selector=f"{label}={value}")).items
        silent = {} if nodes is None else silent_nodes(nodes, agents, {each.metadata.name for each in instaslices})
        return await read_fleet(
            reader,
            [each for each in agents if not names or each.spec.node_name in names],
            {name: each for name, each in silent.items() if not names or name in names},
        )
    except (ApiError, OSError) as error:
        if not isinstance(error, Forbidden):
            note_unanswered("the agents' pods", error, failed)
        return None


async def watch_cluster(
    client: Client, clock: Clock, rng: random.Random, nodes: Sequence[str] = ()
) -> AsyncIterator[ClusterReading]:
    """Yields a reading at once, and another one whenever something changes.

    Objects are watched. Agents' pages are read each :data:`PERIOD` seconds. While the API server does not answer, a
    reading comes after each try, with the :attr:`ClusterReading.failure`.

    Args:
        client: the user's client.
        clock: the time.
        rng: for the pauses of watches.
        nodes: nodes whose agents are asked; empty for all.

    Raises:
        NotFound: the kind Instaslice is not installed.
        Forbidden: the user may not read Instaslice objects.
    """
    reader = PageReader(client, clock)
    first = await read_cluster(client, nodes, reader)
    changed = asyncio.Event()
    from tessera.kube.informer import Informer  # a single reading needs none

    informers: dict[str, Informer[Any]] = {
        resource.plural: Informer(
            client,
            resource,
            namespace=INSTASLICE_NAMESPACE if resource is INSTASLICES else None,
            clock=clock,
            rng=rng,
        )
        for resource, listed in ((INSTASLICES, first.instaslices), (NODES, first.nodes), (PODS, first.pods))
        if listed is not None
    }
    for informer in informers.values():
        informer.add_handler(lambda _: changed.set())

    async def read_pages() -> FleetUsage | None:
        if not synced.done():
            return first.fleet
        listed = informers[NODES.plural].cache.values() if NODES.plural in informers else None
        return await _pages(client, reader, nodes, informers[INSTASLICES.plural].cache.values(), listed)

    pages = _Pages(first.fleet, read_pages)
    tasks = [asyncio.create_task(each.run()) for each in informers.values()]
    probe = _Probe(client)
    tasks += [asyncio.create_task(each.run(clock, changed)) for each in (pages, probe)]
    synced = asyncio.gather(*(each.wait_synced() for each in informers.values()))
    synced.add_done_callback(lambda _: changed.set())
    try:
        yield first
        while True:
            await changed.wait()
            changed.clear()
            if not synced.done():
                # The server may be lost before the watches have begun.
                if probe.failure is not None:
                    yield msgspec.structs.replace(first, failure=probe.failure)
                continue
            yield ClusterReading(
                instaslices=list(informers[INSTASLICES.plural].cache.values()),
                nodes=list(informers[NODES.plural].cache.values()) if NODES.plural in informers else None,
                pods=list(informers[PODS.plural].cache.values()) if PODS.plural in informers else None,
                fleet=pages.fleet,
                failure=probe.failure,
            )
            await clock.sleep(PAUSE)
    finally:
        synced.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, synced, return_exceptions=True)


class _Pages:
    """The agents' pages, read again and again; the last ones stay while nobody answers."""

    def __init__(self, fleet: FleetUsage | None, read: Callable[[], Awaitable[FleetUsage | None]]) -> None:
        self.fleet = fleet
        self._read = read

    async def run(self, clock: Clock, changed: asyncio.Event) -> None:
        while self.fleet is not None:
            await clock.sleep(PERIOD)
            with contextlib.suppress(ApiError, OSError):
                found = await self._read()
                if found != self.fleet:
                    self.fleet = found
                    changed.set()


class _Probe:
    """Asks the API server for one object again and again: watches do not say that it has gone."""

    def __init__(self, client: Client) -> None:
        self.failure: Exception | None = None
        self._client = client

    async def run(self, clock: Clock, changed: asyncio.Event) -> None:
        while True:
            await clock.sleep(PERIOD)
            before = self.failure
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._client.page(INSTASLICES, INSTASLICE_NAMESPACE, limit=1)
                self.failure = None
            except (ApiError, OSError) as error:
                self.failure = error if str(error) else TimeoutError("the API server does not answer")
            if before is not None or self.failure is not None:
                changed.set()
