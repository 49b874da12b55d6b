"""The plan of one MPS daemon: the GPUs that it serves and the share of each client."""

from collections.abc import Collection, Mapping

import msgspec

from tessera.api.sharing.shares import ClientShare


class MpsPlan(msgspec.Struct, frozen=True):
    """The daemon of one resource.

    Attributes:
        devices: the share of one client on each card, by the card's UUID; in the order of the cards' indexes.
        replicas: number of clients of the card with most shares.
    """

    devices: Mapping[str, ClientShare]
    replicas: int

    @property
    def cards(self) -> tuple[str, ...]:
        """UUIDs of the cards that the daemon serves."""
        return tuple(self.devices)

    @property
    def thread_percent(self) -> int:
        """Percentage of a card's threads that one client may use."""
        return min(share.thread_percent for share in self.devices.values())


def drop_cards(plans: Mapping[str, MpsPlan], cards: Collection[str]) -> dict[str, MpsPlan]:
    """Returns the plans without these cards; drops a plan that has no card left."""
    left = {
        resource: {card: share for card, share in plan.devices.items() if card not in cards}
        for resource, plan in plans.items()
    }
    return {resource: MpsPlan(shares, plans[resource].replicas) for resource, shares in left.items() if shares}
