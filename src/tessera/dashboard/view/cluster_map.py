"""The map of the cluster's cards, and the object of the API ``view.tessera.dev/v1alpha1`` that holds it.

It is apart from the other objects so that ``tessera map`` loads nothing of the queue and of services.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import Instaslice
from tessera.api.nodes.silence import SilentNode, silent_nodes
from tessera.dashboard.view.explanations import GROUP, VERSION
from tessera.explain.card_map import NodeCards, PendingNode, pending_nodes
from tessera.explain.fleet_map import count_waiting, map_fleet
from tessera.kube.resources.meta import ObjectMeta, Resource, Wire
from tessera.observe.cluster_reading import ClusterReading
from tessera.text import one_line

#: The note for a user who may not read the agents' pages.
NO_PAGES = (
    "whole, shared and fixed MIG cards are shown by node only: each card needs the right to get pods/proxy in the"
    " namespace tessera-system; bind the ClusterRole tessera-usage-reader there"
)


#: The field of a reservation by which slots are kept for somebody's next pod, or spare.
_KEPT_FOR = '"keptFor"'


class ClusterMap(msgspec.Struct, frozen=True, kw_only=True):
    """What was read.

    Attributes:
        nodes: all nodes with cards.
        pending: nodes that are labelled for slices on demand and have no cards yet.
        waiting: pods that wait for cards; None if the user may not list pods.
        note: a right that is missing, and what is not shown without it, or what the API server did not answer; empty if
            nothing is missing.
        simulated: True if cards exist only in a lab.
        spare: what queues keep free for their services, a sentence for each node, profile and queue.
    """

    nodes: Sequence[NodeCards]
    pending: Sequence[PendingNode]
    waiting: int | None
    note: str
    simulated: bool
    spare: Sequence[str] = ()


def make_map(reading: ClusterReading) -> ClusterMap:
    """Makes the map of what was read."""
    fleet, nodes = reading.fleet or FleetUsage(failures=_silent(reading)), reading.nodes or ()
    silent = {each.node: each for each in fleet.failures}
    found = map_fleet(reading.instaslices, fleet.nodes, silent, nodes, reading.pods or ())
    pending = pending_nodes(nodes, {each.node for each in found if each.cards}, silent)
    waiting = {each.node for each in pending}
    return ClusterMap(
        nodes=[each for each in found if each.cards or each.resources or (each.unread and each.node not in waiting)],
        pending=pending,
        waiting=None if reading.pods is None else count_waiting(reading.pods),
        note=reading.unread or ("" if reading.fleet is not None else NO_PAGES),
        simulated=any(each.simulated for each in fleet.nodes),
        spare=tuple(_spare(reading.instaslices)),
    )


def _spare(items: Iterable[Instaslice]) -> Iterator[str]:
    kept = [each for each in items if any(_KEPT_FOR in text for text in each.metadata.annotations.values())]
    if not kept:
        return
    from tessera.controller.slicing.state.node_records import read_reservations
    from tessera.placement.cards import SPARE_OF

    found = Counter(
        (node, each.kept_for.removeprefix(SPARE_OF), one.profile)
        for item in kept
        for node, _, each in read_reservations(item)
        if each.kept_for.startswith(SPARE_OF)
        for one in each.slices
    )
    for (node, queue, profile), count in sorted(found.items()):
        yield f"node {node}: {count} x {profile} kept spare for services of queue {one_line(queue, 253)}"


def _silent(reading: ClusterReading) -> tuple[SilentNode, ...]:
    """The nodes that should answer and do not, for a user who may not read the agents' pages."""
    if reading.nodes is None or reading.pods is None:
        return ()
    return tuple(
        silent_nodes(reading.nodes, reading.pods, {each.metadata.name for each in reading.instaslices}).values()
    )


class Map(Wire, frozen=True, kw_only=True):
    """The cards with what is on them and what has room, as ``tessera map`` shows them."""

    metadata: ObjectMeta = ObjectMeta()
    map: ClusterMap


MAPS = Resource(GROUP, VERSION, "maps", "Map", True, Map)
