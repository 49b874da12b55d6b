"""What pods hold of the cards, or would hold, as their queue counts it."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.queue_ledger import Holding
from tessera.controller.slicing.state.reservation import QueueKey
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.mig.geometry import Geometry
from tessera.mig.names import is_device_profile, parse_profile_name
from tessera.placement.fleet import UnknownCard


def queue_key(state: SlicerState, pod: PodInfo) -> QueueKey:
    """Returns a pod's queue, and the models of cards that have its profiles."""
    tables = state.inventory.fleet.tables
    able = (table.number for table in tables if any(table.name_of(each) for each in pod.profiles))
    return (state.cluster.queue_of(pod), tuple(sorted(able)))


def holding_of(state: SlicerState, pod: PodInfo) -> Holding:
    """Returns what a waiting pod would hold: slots of the model of which it takes the least share."""
    best: tuple[float, str, int, int] | None = None
    for table in state.inventory.fleet.tables:
        names = [table.name_of(each) for each in pod.profiles]
        if all(names):
            slots = sum(table.size_of(name) for name in names if name is not None)
            model = table.geometry.family
            part = slots / max(1, state.inventory.totals.get(model, 0))
            if best is None or (part, model) < best[:2]:
                gib = sum(_gib(name, table.geometry) for name in names if name is not None)
                best = (part, model, slots, gib)
    if best is None:
        return Holding({}, sum(map(_gib, pod.profiles)))
    return Holding({best[1]: best[2]}, best[3])


def reserved_for_others(state: SlicerState, queue: str, pod: PodInfo) -> Holding:
    """Returns what is reserved for pods of a queue besides this one and its gang."""
    own = pod.gang.key if pod.gang is not None else ""
    others = (each for each in state.reservations.values() if each.uid != pod.uid and not (own and each.gang == own))
    pods = (state.cluster.pods.get(each.uid) for each in others)
    return add_holdings(
        holding_of(state, each) for each in pods if each is not None and state.cluster.queue_of(each) == queue
    )


def add_holdings(holdings: Iterable[Holding]) -> Holding:
    """Returns the sum."""
    slots: Counter[str] = Counter()
    gib = 0
    for each in holdings:
        slots.update(each.slots)
        gib += each.gib
    return Holding(slots, gib)


def held_by(state: SlicerState, allocation: Allocation) -> Holding:
    """Returns what an allocation holds."""
    slots: Counter[str] = Counter()
    gib = 0
    for each in allocation.slices:
        geometry = None
        with suppress(UnknownCard):  # the card is gone, the slice is not given back yet
            geometry = state.inventory.fleet.card(allocation.node, each.gpu_uuid).geometry
        slots[geometry.family if geometry is not None else ""] += each.size
        gib += _gib(each.profile, geometry)
    return Holding(dict(slots), gib)


def _gib(profile: str, geometry: Geometry | None = None) -> int:
    """GPU memory by the profile's name, as the memory quota counts it; of a device by its card."""
    if is_device_profile(profile):
        row = geometry.find(profile) if geometry is not None else None
        return row.memory_gb if row is not None else 0
    try:
        return parse_profile_name(profile).memory_gb
    except ValueError:
        return 0
