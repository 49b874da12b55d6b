"""Costs of devices by the engine that places slices: a partition goes where its card loses least.

The geometry of a card is read from its partitions in the pool, so claims need no table of models. Of equal places the
one on the fuller card comes first, and a card that cannot be cut is given whole before one that can. A node may be
hostile: the devices of a card whose partitions make no geometry all cost the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from tessera.dra.devices import Device, DeviceId, Holdings, Pool, Value
from tessera.dra.matching import DeviceCost
from tessera.limits.planning import CARD_MODELS
from tessera.mig.geometry import Geometry
from tessera.placement.card_table import CardTable

#: Rates an occupancy of a card; less is better.
Loss = Callable[[CardTable, int], float]
#: Less than any difference of two losses; orders equal places.
_TIE = 1e-6

#: Name of a counter of one memory slice.
_SLICE = re.compile(r"memory-slice-([0-9]{1,2})")
#: Profile, start and size.
_Row = tuple[str, int, int]


class _Card(msgspec.Struct, frozen=True):
    """A card that is cut: its table, its devices as bits of an occupancy, and the bits that others took."""

    table: CardTable
    bits: Mapping[DeviceId, int]
    foreign: int


class NodePacking:
    """The cards of a node's pools, read once.

    Args:
        pools: its pools.
        loss: the rating of the placement policy.
    """

    def __init__(self, pools: Sequence[Pool], loss: Loss = CardTable.fragmentation) -> None:
        self._cards = [card for pool in pools for card in _cards(pool)]
        self._by_device = {identity: card for card in self._cards for identity in card.bits}
        self._loss = loss

    def costs(self, holdings: Holdings) -> DeviceCost:
        """Returns the costs of devices beside what claims hold."""
        occupancies: dict[int, int] = {}

        def occupancy(card: _Card) -> int:
            found = occupancies.get(id(card))
            if found is None:
                found = card.foreign
                for identity in card.bits.keys() & holdings.exclusive:
                    found |= card.bits[identity]
                occupancies[id(card)] = found
            return found

        def cost(device: Device, chosen: Sequence[Device]) -> float:
            card = self._by_device.get(device.id)
            if card is None:
                return 0.0
            if f"{device.id.driver}/profile" not in device.attributes:
                return 1.0  # a whole card that could be cut: after every card that cannot
            before = occupancy(card)
            for each in chosen:
                before |= card.bits.get(each.id, 0)
            growth = self._loss(card.table, before | card.bits[device.id]) - self._loss(card.table, before)
            return growth + _TIE * card.table.free_slots(before)

        return cost


def _cards(pool: Pool) -> list[_Card]:
    parts: dict[Value, list[Device]] = {}
    whole: dict[Value, Device] = {}
    for device in pool.devices:
        parent = device.attributes.get(f"{pool.driver}/parentUUID")
        if parent is not None and device.counters:
            parts.setdefault(parent, []).append(device)
        elif (uuid := device.attributes.get(f"{pool.driver}/uuid")) is not None:
            whole[uuid] = device
    found = []
    for uuid, devices in parts.items():
        try:
            rows = [_row(device, pool.driver) for device in devices]
            table = _table(tuple(sorted(rows)))
            bits = {
                device.id: table.geometry.claim(table.geometry.profile(name), start)
                for device, (name, start, _size) in zip(devices, rows, strict=True)
            }
        except (ValueError, LookupError):
            continue
        if uuid in whole:
            bits[whole[uuid].id] = table.geometry.full
        empty = {key[1] for device in devices for key in device.counters if not pool.counters.get(key)}
        found.append(_Card(table, bits, sum(1 << slot for slot in set(_slots(empty)))))
    return found


def _row(device: Device, driver: str) -> _Row:
    slots = _slots(counter for _, counter in device.counters)
    return str(device.attributes[f"{driver}/profile"]), min(slots), len(slots)


def _slots(counters: Iterable[str]) -> list[int]:
    """Memory slices that counters stand for."""
    return [int(found[1]) for each in counters if (found := _SLICE.fullmatch(each)) is not None]


@lru_cache(maxsize=int(CARD_MODELS))
def _table(rows: tuple[_Row, ...]) -> CardTable:
    placements: dict[str, list[tuple[int, int]]] = {}
    for name, start, size in rows:
        placements.setdefault(name, []).append((start, size))
    return CardTable(Geometry.from_placements("cards of a pool", placements), 0)
