"""The node's cards for all parts of the agent: has them read again, remembers those of this boot, knows who uses them.

It is made before the parts that it asks; whoever joins them sets them.

A file has the cards of this boot, so that a restarted agent names a card that no longer answers. A boot may give a card
another index, and a person may have replaced it meanwhile: cards of an earlier boot are not known any more. An agent of
an earlier version has left only the faults of its cards, which have at least their UUIDs.
"""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.state_file import StateFile
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.inventory.device_state import DeviceUsers
from tessera.agent.inventory.gpu_inventory import GpuInventory, InventoryReader
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser
from tessera.agent.slices.slice_manager import SliceManager
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo
from tessera.nvml.known_cards import UNREAD, blank_card

_log = logging.getLogger(__name__)


class StoredCards(msgspec.Struct, frozen=True):
    """The content of the file: the node's boot id, and the cards as they were read last."""

    boot: str = ""
    cards: tuple[GpuInfo, ...] = ()


class KnownCardsFile:
    """The file of the cards of this boot.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, StoredCards)

    def load(self, boot: str, faulty: Collection[str]) -> tuple[GpuInfo, ...]:
        """The cards of this boot.

        Args:
            boot: the node's boot id; not empty.
            faulty: UUIDs of the cards with faults of this boot.
        """
        stored = self._file.load() or StoredCards()
        cards = stored.cards if boot == stored.boot else ()
        missing = set(faulty) - {card.uuid for card in cards}
        return (*cards, *(blank_card(uuid) for uuid in sorted(missing) if not uuid.startswith(UNREAD)))

    def save(self, boot: str, cards: Iterable[GpuInfo]) -> None:
        """Saves the cards that were read at least once in the boot of this id."""
        known = tuple(
            msgspec.structs.replace(card, lost=False, error="")
            for card in cards
            if card.identified and not card.uuid.startswith(UNREAD)
        )
        self._file.save_if_possible(StoredCards(boot, known), "names of cards may not be known")


class AgentCards:
    """The node's cards.

    Args:
        runtime: the cards, and the node's objects.
        inventory: reads the cards.
        users: asks kubelet for the pods that hold devices.

    Attributes:
        health: their health.
        slices: the slices on demand.
        advertiser: the static devices.
    """

    health: HealthMonitor
    slices: SliceManager
    advertiser: ResourceAdvertiser

    def __init__(self, runtime: AgentRuntime, inventory: InventoryReader, users: DeviceUsers) -> None:
        self._hardware = runtime.hardware
        self._inventory = inventory
        self._mirror = runtime.mirror
        self._users = users
        self._known = KnownCardsFile(runtime.state_file("known-cards.json"))
        #: False until the cards of this boot were recalled; the file is not written before.
        self._recalled = False

    async def recall(self) -> bool:
        """Tells the driver's side which cards this boot has had, beside those that were read; false while unknown."""
        boot = self._mirror.boot_id()
        known = self._known.load(boot, self.health.faulty_gpus()) if boot else ()
        await self._hardware.set_known_cards((*known, *(gpu.info for gpu in self._inventory.inventory.gpus)))
        self._recalled = boot != ""
        return self._recalled

    def note_inventory(self, inventory: GpuInventory) -> None:
        """Takes in a reading of the cards, whichever part asked for it."""
        if self._recalled:
            self._known.save(self._mirror.boot_id(), (gpu.info for gpu in inventory.gpus))
        self.health.set_cards(
            (gpu.info for gpu in inventory.gpus), {gpu.uuid: gpu.error for gpu in inventory.gpus if gpu.error}
        )

    async def reread_card(self, gpu: str | None) -> None:
        """Has a card read again after an event on it; all cards for ``None``."""
        await self.reread_cards([gpu])

    async def reread_cards(self, gpus: Iterable[str | None]) -> None:
        """Has cards read again, as :meth:`reread_card` does one."""
        for gpu in gpus:
            self.slices.suspect(gpu)
        try:
            await self._inventory.refresh()
        except NvmlError as error:
            _log.warning("the cards cannot be listed, the last reading stays in use: %s", error)

    async def is_unused(self, uuid: str) -> bool:
        """True if no pod has any part of a card, nor is about to get one."""
        card = self._inventory.inventory.gpu(uuid)
        if card is not None and card.info.mig_enabled and card.error and not card.mig_attributes:
            return False  # its MIG devices are not known, so it is not known who holds them
        parts = {uuid, *(card.mig_attributes if card is not None else ())}
        if self.slices.is_busy(uuid) or not parts.isdisjoint(self.advertiser.recent_allocations):
            return False
        return parts.isdisjoint(await self._users.read())

    async def is_node_empty(self) -> bool:
        """True if no pod has any card of the node, nor is about to get one; a slice on a lost card is nobody's then."""
        if self.slices.has_given_otherwise or self.advertiser.recent_allocations or await self._users.read():
            return False
        item = self._mirror.instaslice()
        if item is None:
            return True
        recorded = {*item.spec.pod_allocation_requests, *item.status.pod_allocation_results}
        return recorded.isdisjoint(pod.metadata.uid for pod in await self._mirror.list_bound_pods())
