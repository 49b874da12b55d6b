"""Who has a card: the slicer, which cuts it on demand, or the static side, which offers it as it is or as laid out.

A layout says who shall have each card. A card changes hands only after the side that has it has let go: the slicer when
no slice of it is promised or made, the static side when no pod holds the card or a part of it and what the layout made
there is gone. So a card is never cut under a pod, whatever the node's label says and however often it changes. Who has
which card is kept in a file: a process that starts again does not take a card from the other side by mistake.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from tessera.agent.base.state_file import StateFile


class CardOwner(Enum):
    """Who has a card, or shall have it."""

    ON_DEMAND = "on-demand"
    STATIC = "static"


class CardOwnership:
    """The roles of a node's cards. A card that nothing was wished for is static.

    Args:
        path: where it is kept who has which card.

    Attributes:
        decided: somebody has said who shall have which card; before that nobody may act on a card.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, dict[str, CardOwner])
        self._wanted: dict[str, CardOwner] = {}
        self._held = self._file.load() or {}
        self.decided = False

    def assume(self, held: Mapping[str, CardOwner]) -> None:
        """Says who has cards for sure when the process starts, whatever the file says.

        Args:
            held: the slicer's are the cards on which it has made or promised slices; the static side's those that
                pods hold and of which the file says nothing.
        """
        self._held |= held

    def is_known(self, uuid: str) -> bool:
        """True if it is known who has a card: from the file, or since it was said."""
        return uuid in self._held

    def set_desired(self, wanted: Mapping[str, CardOwner]) -> bool:
        """Says who shall have each card; returns whether that is news.

        A card that nobody had yet is taken at once by whoever shall have it.

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
        """Who shall have a card."""
        return self._wanted.get(uuid, CardOwner.STATIC)

    def owner(self, uuid: str) -> CardOwner:
        """Who has a card now."""
        return self._held.get(uuid, CardOwner.STATIC)

    def is_leaving(self, uuid: str) -> bool:
        """True if the side that has a card is to let go of it; it gives nothing of it to further pods."""
        return self.owner(uuid) is not self.desired_owner(uuid)

    def hand_over(self, uuid: str) -> None:
        """The side that has a card needs it no longer: whoever shall have it has it from now on.

        Raises:
            OSError: the file cannot be written.
        """
        self._held[uuid] = self.desired_owner(uuid)
        self._save()

    def on_demand_gpus(self) -> frozenset[str]:
        """The cards that the slicer has."""
        return self._having(CardOwner.ON_DEMAND)

    def static_gpus(self) -> frozenset[str]:
        """The cards that the static side has."""
        return self._having(CardOwner.STATIC)

    def _having(self, role: CardOwner) -> frozenset[str]:
        known: Iterable[str] = {*self._wanted, *self._held}
        return frozenset(uuid for uuid in known if self.owner(uuid) is role)

    def _save(self) -> None:
        self._file.save(dict(sorted(self._held.items())))
