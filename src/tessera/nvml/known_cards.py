"""Lists every card of a machine under its own name, whether it answers or not. Pure.

A card that does not answer cannot be asked for its UUID. Rules:

1. A card whose UUID can be read keeps what was known of it before where a value cannot be read.
2. Indexes move up when NVML no longer lists a card. So a failed index is counted from the nearest card before it that
   was read: the known card that came as many places after that card has the failed index now. Failed indexes that are
   left and known cards that are missing are paired in their order.
3. A failed index without such a card is ``GPU-unread-<index>``, until it can be read.
4. A known card that is missing without a failed index is lost: NVML no longer lists it. It is forgotten if another
   driver has it (``vfio-pci``).
5. A GPU on the PCI bus that NVML does not list is a card that cannot be read.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.nvml.errors import LOST_CODES, NvmlError
from tessera.nvml.interface import GpuInfo, GpuUuid

#: Beginning of the UUID of a card whose own UUID nobody knows.
UNREAD = "GPU-unread-"


class KnownCards:
    """The cards of one machine that were read since its boot, as they were read last."""

    def __init__(self, cards: Iterable[GpuInfo] = ()) -> None:
        #: By UUID; all of them are readable in their last values.
        self._cards: dict[GpuUuid, GpuInfo] = {}
        self.set(cards)

    def set(self, cards: Iterable[GpuInfo]) -> None:
        """Sets the known cards, in place of all before."""
        self._cards = {}
        self._add(cards)

    def get(self, uuid: str) -> GpuInfo | None:
        """A known card as it was read last; ``None`` if it is not known."""
        return self._cards.get(GpuUuid(uuid))

    def all(self) -> Sequence[GpuInfo]:
        """Every known card as it was read last."""
        return list(self._cards.values())

    def name_of(self, index: int) -> GpuUuid:
        """The UUID of the card of an index as last read, ``GPU-unread-<index>`` if none is known."""
        found = next((info.uuid for info in self._cards.values() if info.index == index), None)
        return found or GpuUuid(f"{UNREAD}{index}")

    def merge(
        self, read: Iterable[GpuInfo], failed: Mapping[int, NvmlError], bus: Mapping[str, bool] | None = None
    ) -> list[GpuInfo]:
        """Every card by index.

        Args:
            read: the cards whose UUID was read, perhaps with an error for their other values.
            failed: by NVML's index, the error of each card whose UUID cannot be read.
            bus: the GPUs on the PCI bus by address in NVML's form; false for one that another driver has.
        """
        bus = bus or {}
        self._cards = {uuid: info for uuid, info in self._cards.items() if bus.get(info.pci_bus_id, True)}
        found = {info.uuid: self._complete(info) for info in read}
        missing = sorted((info for uuid, info in self._cards.items() if uuid not in found), key=lambda info: info.index)
        for index, uuid in self._pair(sorted(failed), missing, found.values()).items():
            found[uuid] = _unreadable(self._cards.get(uuid, _blank(uuid, index)), index, failed[index])
        for info in missing:
            if info.uuid not in found:
                index = info.index if info.index >= 0 else _next_index(found.values())
                found[info.uuid] = msgspec.structs.replace(info, index=index, lost=True)
        cards = _add_from_bus(list(found.values()), [address for address, ours in bus.items() if ours])
        self._add(cards)
        return sorted(cards, key=lambda info: (info.index, info.uuid))

    def _add(self, cards: Iterable[GpuInfo]) -> None:
        """Keeps the last good values of cards; a card that was never read is kept if its UUID is its own."""
        for info in cards:
            if not info.uuid.startswith(UNREAD) and (info.readable or info.uuid not in self._cards):
                self._cards[info.uuid] = msgspec.structs.replace(info, lost=False, error="")

    def _complete(self, info: GpuInfo) -> GpuInfo:
        known = self._cards.get(info.uuid)
        if info.readable or known is None:
            return info
        return msgspec.structs.replace(known, index=info.index, lost=info.lost, error=info.error)

    def _pair(self, failed: Sequence[int], missing: Sequence[GpuInfo], read: Iterable[GpuInfo]) -> dict[int, GpuUuid]:
        """The UUID of each failed index."""
        by_index = {info.index: info.uuid for info in missing}
        moved = {info.index: self._cards[info.uuid].index - info.index for info in read if info.uuid in self._cards}
        before = {index: max((each for each in moved if each < index), default=None) for index in failed}
        former = {index: index + (0 if each is None else moved[each]) for index, each in before.items()}
        found = {index: by_index[former[index]] for index in failed if former[index] in by_index}
        left = [info.uuid for info in missing if info.uuid not in found.values()]
        for index in failed:
            if index not in found:
                found[index] = left.pop(0) if left else GpuUuid(f"{UNREAD}{index}")
        return found


def _blank(uuid: GpuUuid, index: int) -> GpuInfo:
    """A card of which nothing but its index is known."""
    return GpuInfo(
        uuid=uuid,
        index=index,
        minor=-1,
        name="",
        memory_mib=0,
        pci_bus_id="",
        pci_device_id="0x00000000",
        compute_capability=(0, 0),
    )


def blank_card(uuid: str) -> GpuInfo:
    """A card of which nothing but its UUID is known; it gets an index when it is listed."""
    return _blank(GpuUuid(uuid), -1)


def _unreadable(known: GpuInfo, index: int, error: NvmlError) -> GpuInfo:
    lost = error.code in LOST_CODES
    return msgspec.structs.replace(known, index=index, lost=lost, error="" if lost else str(error))


def _next_index(cards: Iterable[GpuInfo]) -> int:
    return max((info.index for info in cards), default=-1) + 1


def _add_from_bus(cards: list[GpuInfo], addresses: Sequence[str]) -> list[GpuInfo]:
    """Adds the GPUs on the PCI bus that are none of the cards; gives the only card without an address the only one."""
    taken = {info.pci_bus_id for info in cards}
    beyond = [address for address in addresses if address not in taken]
    nameless = [info for info in cards if not info.pci_bus_id]
    if len(nameless) == len(beyond) == 1:
        return [msgspec.structs.replace(info, pci_bus_id=info.pci_bus_id or beyond[0]) for info in cards]
    for number in range(len(beyond) - len(nameless)):
        index = _next_index(cards)
        address = "" if nameless else beyond[number]
        text = f"the PCI bus has a GPU{f' at {address}' if address else ''} that NVML does not list; see NVRM in dmesg"
        card = _blank(GpuUuid(f"{UNREAD}{index}"), index)
        cards.append(msgspec.structs.replace(card, pci_bus_id=address, error=text))
    return cards
