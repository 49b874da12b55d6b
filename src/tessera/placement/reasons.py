"""Reasons why a demand has no place, as data with a text for people.

The controller puts the text into events, ``tessera why`` prints it, tests compare the data.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from tessera.placement.cards import OwnedPlacement


class NodeRefusal(msgspec.Struct, frozen=True):
    """Why one node does not take one demand.

    Attributes:
        rule: the rule in a few words that are the same for every node, ``untolerated taint {gpu: down}``; refusals
            are counted by it.
        text: the details of this node, for logs.
    """

    rule: str
    text: str = ""


class UnknownProfile(msgspec.Struct, frozen=True, tag=True):
    """No card of the fleet has a profile that the demand names.

    profile: the requested name.
        profile: the name as it was asked for.
        known: the profiles that the fleet's cards have.
        closest: the known profile whose spelling is closest, if any is close.
    """

    profile: str
    known: tuple[str, ...]
    closest: str | None = None

    @property
    def text(self) -> str:
        """The reason in words."""
        if not self.known:
            return f'no card can make "{self.profile}": no node offers slices on demand'
        meant = f'; did you mean "{self.closest}"?' if self.closest else ";"
        return f'no card has a profile "{self.profile}"{meant} the cards have {", ".join(self.known)}'


class NeverFits(msgspec.Struct, frozen=True, tag=True):
    """No node could hold the demand even if all of its cards were empty.

    Attributes:
        profiles: the requested profiles.
    """

    profiles: tuple[str, ...]

    @property
    def text(self) -> str:
        """The reason in words."""
        wanted = _count_profiles(self.profiles)
        return (
            f"no node's cards can hold {wanted} together, even empty; a pod's slices must be on one node: ask for fewer"
        )


class NoNode(msgspec.Struct, frozen=True, tag=True):
    """Nodes refuse the demand by their rules.

    Attributes:
        counts: rule to the number of nodes that refuse by it, most frequent first.
        no_room: further nodes, not asked because none of their cards has the profiles.
    """

    counts: tuple[tuple[str, int], ...]
    no_room: int = 0

    @property
    def text(self) -> str:
        """The reason in words."""
        refused = ", ".join(f"{count} {rule}" for rule, count in self.counts)
        total = sum(count for _, count in self.counts) + self.no_room
        room = f", {self.no_room} without a card that can make it" if self.no_room else ""
        return f"0 of {total} nodes can take it: {refused}{room}"


class Full(msgspec.Struct, frozen=True, tag=True):
    """The cards that may take the demand have fewer usable memory slots free, all together, than it needs.

    Attributes:
        profiles: the requested profiles.
        frees: the smallest set of allocations, all on one node, whose end makes room; empty when more than a few
            would have to end.
    """

    profiles: tuple[str, ...]
    frees: tuple[OwnedPlacement, ...] = ()

    @property
    def text(self) -> str:
        """The reason in words."""
        return f"every card is full for {_count_profiles(self.profiles)}; {_freed_by(self.frees)}"


class Fragmented(msgspec.Struct, frozen=True, tag=True):
    """Enough memory slots are free, but spread over cards or not where the profiles may start.

    Attributes:
        profiles: the requested profiles.
        free_slots: the most usable free slots on one card, or on one node for a demand of several slices.
        frees: as in ``Full``.
        total: usable free slots of all cards that may take the demand.
    """

    profiles: tuple[str, ...]
    free_slots: int
    frees: tuple[OwnedPlacement, ...] = ()
    total: int = 0

    @property
    def text(self) -> str:
        """The reason in words."""
        wanted = _count_profiles(self.profiles)
        return (
            f"{self.total} memory slots are free, at most {self.free_slots} together, but nowhere at a start that is"
            f" legal for {wanted}; {_freed_by(self.frees)}"
        )


Reason = UnknownProfile | NeverFits | NoNode | Full | Fragmented


def _count_profiles(profiles: Iterable[str]) -> str:
    """``28 x 1g.5gb, 3g.20gb``."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(profiles).items())


def _freed_by(frees: tuple[OwnedPlacement, ...]) -> str:
    if not frees:
        return "several allocations would have to end to make room"
    parts = [f"{one.owner} ({one.placement.profile} at {one.placement.start})" for one in frees]
    verb = "ends" if len(parts) == 1 else "end"
    return f"room comes when {' and '.join(parts)} on node {frees[0].placement.node} {verb}"
