"""The map of a cluster's cards, from what was read of it."""

from collections.abc import Sequence

import msgspec

from tessera.api.nodes.silence import SilentNode, silent_nodes
from tessera.explain.card_map import NodeCards, PendingNode, pending_nodes
from tessera.explain.fleet_map import count_waiting, map_fleet
from tessera.observe.cluster_reading import ClusterReading
from tessera.usage.agent_pages import FleetUsage

#: The note for a user who may not read the agents' pages.
NO_PAGES = (
    "whole, shared and fixed MIG cards are shown by node only: each card needs the right to get pods/proxy in the"
    " namespace tessera-system; bind the ClusterRole tessera-usage-reader there"
)


class ClusterMap(msgspec.Struct, frozen=True, kw_only=True):
    """What was read.

    Attributes:
        nodes: all nodes with cards.
        pending: nodes that are labelled for slices on demand and have no cards yet.
        waiting: pods that wait for cards; None if the user may not list pods.
        note: a right that is missing, and what is not shown without it; empty if nothing is missing.
        simulated: True if cards exist only in a lab.
    """

    nodes: Sequence[NodeCards]
    pending: Sequence[PendingNode]
    waiting: int | None
    note: str
    simulated: bool


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
        note="" if reading.fleet is not None else NO_PAGES,
        simulated=any(each.simulated for each in fleet.nodes),
    )


def _silent(reading: ClusterReading) -> tuple[SilentNode, ...]:
    """The nodes that should answer and do not, for a user who may not read the agents' pages."""
    if reading.nodes is None or reading.pods is None:
        return ()
    return tuple(
        silent_nodes(reading.nodes, reading.pods, {each.metadata.name for each in reading.instaslices}).values()
    )
