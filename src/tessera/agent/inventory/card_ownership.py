"""Records which side owns a card: the slice manager, which cuts it on demand, or the static side.

The static side offers a card as it is or as its layout cuts it. A layout sets the desired owner of each card. A card
changes its owner only after the present one has released it: the slice manager once no slice of it is promised or made,
the static side once no pod holds the card or a part of it and the layout's instances are gone. So a card is never cut
under a pod, whatever the node's label says and however often it changes. The owners are kept in a file: a process that
starts again does not take a card from the other side by mistake.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from tessera.agent.base.state_file import StateFile


class CardOwner(Enum):
    """The present or desired owner of a card."""

    ON_DEMAND = "on-demand"
    STATIC = "static"


class CardOwnership:
    """The owners of a node's cards. A card without a desired owner is static.

    Args:
        path: the file of the owners.

    Attributes:
        decided: true once the desired owners are set; before that no part may act on a card.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, dict[str, CardOwner])
        self._wanted: dict[str, CardOwner] = {}
        self._held = self._file.load() or {}
        self.decided = False

    def assume(self, held: Mapping[str, CardOwner]) -> None:
        """Sets owners that are certain when the process starts, whatever the file says.

        Args:
            held: on-demand for cards on which the slice manager has made or promised slices; static for those that pods
                hold and that the file does not name.
        """
        self._held |= held

    def is_known(self, uuid: str) -> bool:
        """True if the owner of a card is known: from the file, or since it was set."""
        return uuid in self._held

    def set_desired(self, wanted: Mapping[str, CardOwner]) -> bool:
        """Sets the desired owner of each card; returns true if one changed.

        A card without an owner gets its desired owner at once.

        Raises:
            OSError: the file cannot be written.
        """
        news = not self.decided or self._wanted != dict(wanted)
        self._wanted = dict(wanted)
        for uuid, role in self._wanted.items():
            self._held.setdefault(uuid, role)
        self._save()
        self.decided = True
        return news

    def desired_owner(self, uuid: str) -> CardOwner:
        """The desired owner of a card."""
        return self._wanted.get(uuid, CardOwner.STATIC)

    def owner(self, uuid: str) -> CardOwner:
        """The present owner of a card."""
        return self._held.get(uuid, CardOwner.STATIC)

    def is_leaving(self, uuid: str) -> bool:
        """True if the owner of a card must release it; until then it gives nothing of the card to further pods."""
        return self.owner(uuid) is not self.desired_owner(uuid)

    def transfer(self, uuid: str) -> None:
        """Makes the desired owner the present one; the former owner has released the card.

        Raises:
            OSError: the file cannot be written.
        """
        self._held[uuid] = self.desired_owner(uuid)
        self._save()

    def on_demand_gpus(self) -> frozenset[str]:
        """The cards that the slice manager owns."""
        return self._having(CardOwner.ON_DEMAND)

    def static_gpus(self) -> frozenset[str]:
        """The cards that the static side owns."""
        return self._having(CardOwner.STATIC)

    def _having(self, role: CardOwner) -> frozenset[str]:
        known: Iterable[str] = {*self._wanted, *self._held}
        return frozenset(uuid for uuid in known if self.owner(uuid) is role)

    def _save(self) -> None:
        self._file.save(dict(sorted(self._held.items())))
