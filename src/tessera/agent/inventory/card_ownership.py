"""Records which side owns a card: the slice manager, which cuts it on demand, or the static side.

The static side offers a card as it is or as its layout cuts it. The slice manager also has the cards that
ResourceClaims get whole or in shares. A layout sets the desired owner of each card. A card changes its owner only after
the present one has released it: the slice manager once no slice of it is promised or made, the static side once no pod
holds the card or a part of it and the layout's instances are gone. So a card is never cut under a pod, whatever the
node's label says and however often it changes. The owners are kept in a file: a process that starts again does not take
a card from the other side by mistake.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from tessera.agent.base.state_file import StateFile
from tessera.agent.inventory.gpu_inventory import GpuState, InventoryReader, fixed_memory_gib
from tessera.api.names import CLAIMED_CARD
from tessera.api.sharing.devices import SHARING_RULES, SharingKind
from tessera.mig.names import CLAIMED_SHARE


class CardShares(msgspec.Struct, frozen=True):
    """How a card is divided for ResourceClaims: the kind of sharing, and the number of shares."""

    kind: SharingKind
    count: int

    @property
    def have_daemon(self) -> bool:
        """True if a daemon limits each client to one share."""
        return SHARING_RULES[self.kind].limits_threads


class CardOwner(Enum):
    """The present or desired owner of a card.

    The slice manager, which cuts it or gives it to ResourceClaims, whole or in shares; or the static side.
    """

    ON_DEMAND = "on-demand"
    CLAIMS = "claims"
    SHARES = "shares"
    STATIC = "static"


def owner_of(profile: str) -> CardOwner:
    """Returns the owner of a card on which a slice of a profile was promised or made."""
    return {CLAIMED_CARD: CardOwner.CLAIMS, CLAIMED_SHARE: CardOwner.SHARES}.get(profile, CardOwner.ON_DEMAND)


class CardOwnership:
    """The owners of a node's cards. A card without a desired owner is static.

    Args:
        path: the file of the owners; that of the shares is beside it.

    Attributes:
        decided: true once the desired owners are set; before that no part may act on a card.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, dict[str, CardOwner])
        #: The desired owner of each card; empty before the first :meth:`set_desired`.
        self._desired: dict[str, CardOwner] = {}
        #: The present owner of each card, as in the file.
        self._owners = self._file.load() or {}
        self._shares_file = StateFile(path.with_name("card-shares.json"), dict[str, CardShares])
        #: By card in shares, how it must be divided, and how it is divided until it is released.
        self._desired_shares: dict[str, CardShares] = {}
        self._shares = self._shares_file.load() or {}
        self.decided = False

    def assume(self, owners: Mapping[str, CardOwner]) -> None:
        """Sets owners that are certain when the process starts, whatever the file says.

        Args:
            owners: on-demand for cards on which the slice manager has made or promised slices; static for cards that
                pods hold and that the file does not name.
        """
        self._owners |= owners

    def is_known(self, uuid: str) -> bool:
        """True if the owner of a card is known: from the file, or since it was set."""
        return uuid in self._owners

    def set_desired(self, desired: Mapping[str, CardOwner], shares: Mapping[str, CardShares] | None = None) -> bool:
        """Sets the desired owner of each card; returns true if one changed.

        A card without an owner gets its desired owner at once.

        Args:
            desired: the owners.
            shares: how the cards are divided whose desired owner is :attr:`CardOwner.SHARES`.

        Raises:
            OSError: the file cannot be written.
        """
        wanted = dict(desired), dict(shares or {})
        changed = not self.decided or (self._desired, self._desired_shares) != wanted
        self._desired, self._desired_shares = wanted
        for uuid, owner in self._desired.items():
            if self._owners.setdefault(uuid, owner) is CardOwner.SHARES and uuid in self._desired_shares:
                self._shares.setdefault(uuid, self._desired_shares[uuid])
        self._save()
        self.decided = True
        return changed

    def desired_owner(self, uuid: str) -> CardOwner:
        """The desired owner of a card."""
        return self._desired.get(uuid, CardOwner.STATIC)

    def owner(self, uuid: str) -> CardOwner:
        """The present owner of a card."""
        return self._owners.get(uuid, CardOwner.STATIC)

    def is_leaving(self, uuid: str) -> bool:
        """True if the owner of a card must release it; until then it gives nothing of the card to further pods."""
        return self.owner(uuid) is not self.desired_owner(uuid) or (
            self.owner(uuid) is CardOwner.SHARES and self._shares.get(uuid) != self._desired_shares.get(uuid)
        )

    def transfer(self, uuid: str) -> None:
        """Makes the desired owner the present one; the former owner has released the card.

        A card that was cut passes through the static side before it is given whole, which turns off its MIG mode.

        Raises:
            OSError: the file cannot be written.
        """
        owner, desired = self.owner(uuid), self.desired_owner(uuid)
        direct = CardOwner.STATIC in (owner, desired) or CardOwner.ON_DEMAND not in (owner, desired)
        self._owners[uuid] = desired if direct or owner is desired else CardOwner.STATIC
        self._shares.pop(uuid, None)
        if self._owners[uuid] is CardOwner.SHARES and uuid in self._desired_shares:
            self._shares[uuid] = self._desired_shares[uuid]
        self._save()

    def on_demand_gpus(self) -> frozenset[str]:
        """The cards that the slice manager cuts."""
        return self._owned_by(CardOwner.ON_DEMAND)

    def claimed_gpus(self) -> Mapping[str, CardShares | None]:
        """The cards that the slice manager gives to ResourceClaims: how each is divided, ``None`` for a whole one."""
        shared = {uuid: self._shares.get(uuid) for uuid in self._owned_by(CardOwner.SHARES)}
        return {**dict.fromkeys(self._owned_by(CardOwner.CLAIMS)), **shared}

    def static_gpus(self) -> frozenset[str]:
        """The cards that the static side owns."""
        return self._owned_by(CardOwner.STATIC)

    def _owned_by(self, owner: CardOwner) -> frozenset[str]:
        known: Iterable[str] = {*self._desired, *self._owners}
        return frozenset(uuid for uuid in known if self.owner(uuid) is owner)

    def _save(self) -> None:
        self._shares_file.save(dict(sorted(self._shares.items())))
        self._file.save(dict(sorted(self._owners.items())))


class StaticGpus:
    """The static GPUs of the node, from the last reading of the inventory.

    Args:
        inventory: the node's GPUs.
        ownership: the side of the agent that has each GPU.
    """

    def __init__(self, inventory: InventoryReader, ownership: CardOwnership) -> None:
        self._inventory = inventory
        self._ownership = ownership

    def gpus(self) -> Sequence[GpuState]:
        """The static GPUs by index, without those that are about to be cut on demand."""
        static = self._ownership.static_gpus()
        return [
            gpu
            for gpu in self._inventory.inventory.gpus
            if gpu.info.identified and gpu.uuid in static and not self._ownership.is_leaving(gpu.uuid)
        ]

    def mig_memory_gib(self) -> int:
        """Memory of all MIG devices on these GPUs as pods are charged for it, GiB."""
        return fixed_memory_gib(self.gpus())
