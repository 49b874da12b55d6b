"""A demand for slices, and the reasons that it has no place, as data with a text for people.

The controller puts the text of a reason into events, ``tessera why`` prints it, tests compare the data. Metrics have
the ``WORD`` of its class as a label.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol

import msgspec

from tessera.limits.pods import GANG_SIZE
from tessera.placement.cards import OwnedPlacement
from tessera.placement.devices import CARD_SLOTS, is_device_profile
from tessera.placement.step_budget import StepBudget
from tessera.text import count_noun


class Demand(msgspec.Struct, frozen=True, gc=False):
    """Slices that a pod, usually one, waits for.

    Attributes:
        key: names the demand; unique in a batch.
        profiles: one entry per slice, as after ``nvidia.com/mig-`` (``1g.5gb.me``) or as NVIDIA writes it.
        priority: higher goes first.
        arrival: among equals, lower goes first: a time, or a place in an order.
        nodes: the only nodes that may take it, or are worth asking; None for all. Other nodes refuse it when asked.
        again: True if it was refused before and ``nodes`` changed since; the planner then need not explain a new
            refusal.
    """

    key: str
    profiles: tuple[str, ...]
    priority: int = 0
    arrival: float = 0.0
    nodes: frozenset[str] | None = None
    again: bool = False


class NodeRefusal(msgspec.Struct, frozen=True):
    """Reason that one node does not take one demand.

    Attributes:
        rule: the rule in a few words that are the same for every node, ``untolerated taint {gpu: down}``; refusals
            are counted by it.
        text: the details of this node, for logs.
    """

    rule: str
    text: str = ""


#: Tells if a node takes a demand, slices left aside: ``None``, or the refusal.
NodeAllows = Callable[[Demand, str], NodeRefusal | None]


#: Yields nodes with room for a demand of whole cards or shares, best first, as they are now; it may leave out some. The
#: budget pays for it.
NodeRanking = Callable[[Demand, StepBudget], Iterator[str]]


class Reservations(Protocol):
    """Counts what planning gives to demands besides slices (CPU, memory), so that :data:`NodeAllows` can count it."""

    def reserve(self, demand: Demand, node: str) -> None:
        """Takes in that planning gave the demand a place on the node."""
        ...

    def unreserve(self, demand: Demand, node: str) -> None:
        """Takes in that planning took this place back."""
        ...


class UnknownProfile(msgspec.Struct, frozen=True, tag=True):
    """No card of the fleet has a profile that the demand names.

    Attributes:
        profile: the requested name.
        known: the profiles that the fleet's cards have.
        closest: the known profile whose spelling is closest, if any is close.
    """

    WORD: ClassVar[str] = "unknown_profile"

    profile: str
    known: tuple[str, ...]
    closest: str | None = None

    @property
    def text(self) -> str:
        """The reason in words."""
        if is_device_profile(self.profile):
            return f"no node has {self.profile}"
        if not self.known:
            return f'no card can make "{self.profile}": no node has reported a card that is cut on demand'
        meant = f'; did you mean "{self.closest}"?' if self.closest else ";"
        return f'no card has a profile "{self.profile}"{meant} the cards have {", ".join(self.known)}'


class NeverFits(msgspec.Struct, frozen=True, tag=True):
    """No node could hold the demand even if all of its cards were empty.

    Attributes:
        profiles: the requested profiles.
    """

    WORD: ClassVar[str] = "never_fits"

    profiles: tuple[str, ...]

    @property
    def text(self) -> str:
        """The reason in words."""
        wanted = _count_profiles(self.profiles)
        if all(map(is_device_profile, self.profiles)):
            return f"no node has {wanted}, even empty; a pod's cards must be on one node: ask for fewer"
        return (
            f"no node's cards can hold {wanted} together, even empty; a pod's slices must be on one node: ask for fewer"
        )


class NoNode(msgspec.Struct, frozen=True, tag=True):
    """Nodes refuse the demand by their rules.

    Attributes:
        counts: rule to the number of nodes that refuse by it, most frequent first.
        no_room: further nodes, not asked because none of their cards has the profiles.
        too_small: the requested amounts and those of the largest node, in words, if all nodes that refuse are too
            small for the demand even when empty; else empty.
    """

    WORD: ClassVar[str] = "no_node"

    counts: tuple[tuple[str, int], ...]
    no_room: int = 0
    too_small: str = ""

    @property
    def text(self) -> str:
        """The reason in words."""
        if self.too_small:
            return f"no node could ever take it: it requests {self.too_small}"
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
        total: usable free slots of all cards that may take the demand.
        needed: the fewest slots that it takes on a node; 0 if that was not counted.
    """

    WORD: ClassVar[str] = "full"

    profiles: tuple[str, ...]
    frees: tuple[OwnedPlacement, ...] = ()
    total: int = 0
    needed: int = 0

    @property
    def shortage(self) -> str:
        """What is free and what is needed, in words."""
        wanted = _count_profiles(self.profiles)
        if is_device_profile(self.profiles[0]):
            return f"{'fewer than' if len(self.profiles) > 1 else 'no'} {wanted} free"
        if not self.total or not self.needed:
            return f"every card is full for {wanted}"
        return f"not enough free memory slots for {wanted}: {self.total} free, {self.needed} needed"

    @property
    def text(self) -> str:
        """The reason in words."""
        return f"{self.shortage}; {_freed_by(self.frees)}"


class Fragmented(msgspec.Struct, frozen=True, tag=True):
    """Enough memory slots are free, but spread over cards or not where the profiles may start.

    Attributes:
        profiles: the requested profiles.
        free_slots: the most usable free slots on one card, or on one node for a demand of several slices.
        frees: as in ``Full``.
        total: usable free slots of all cards that may take the demand.
        needed: the fewest slots that it takes on a node; 0 if that was not counted.
    """

    WORD: ClassVar[str] = "fragmented"

    profiles: tuple[str, ...]
    free_slots: int
    frees: tuple[OwnedPlacement, ...] = ()
    total: int = 0
    needed: int = 0

    @property
    def shortage(self) -> str:
        """What is free and what is needed, in words."""
        wanted = _count_profiles(self.profiles)
        if is_device_profile(self.profiles[0]):
            return _devices_short(self.profiles, self.free_slots, self.needed)
        free = f"{count_noun(self.total, 'memory slot')} free, at most {self.free_slots}"
        if not self.needed:
            return f"{free} together, but not where NVIDIA allows {wanted} to start"
        where = "card" if len(self.profiles) == 1 else "node"
        if self.needed > self.free_slots:
            return f"{free} on one {where}, and {wanted} needs {self.needed}"
        return f"{free} on one {where}, but not at a start that NVIDIA allows for {wanted}"

    @property
    def text(self) -> str:
        """The reason in words."""
        prefix = "" if is_device_profile(self.profiles[0]) else "the free slots are fragmented: "
        return f"{prefix}{self.shortage}; {_freed_by(self.frees)}"


class Reserved(msgspec.Struct, frozen=True, tag=True):
    """The free slots that would do are kept for demands that go first.

    Attributes:
        profiles: the requested profiles.
        keys: the demands for which they are kept.
        free_slots: the most usable free slots on one card, or on one node for a demand of several slices.
    """

    WORD: ClassVar[str] = "reserved"

    profiles: tuple[str, ...]
    keys: tuple[str, ...]
    free_slots: int = 0

    @property
    def text(self) -> str:
        """The reason in words."""
        return (
            f"the free {room_word(self.profiles)} that would do for {_count_profiles(self.profiles)} are reserved for"
            f" {_list_keys(self.keys)}, which goes first"
        )


class QueueFull(msgspec.Struct, frozen=True, tag=True):
    """The demand's queue holds as much as it may.

    Attributes:
        profiles: the requested profiles.
        queue: the queue.
        maximum: the most that it may hold, in words.
        held: what it holds, in the same unit.
        never: True if the demand alone is more than the maximum.
    """

    WORD: ClassVar[str] = "queue_full"

    profiles: tuple[str, ...]
    queue: str
    maximum: str
    held: str
    never: bool = False

    @property
    def text(self) -> str:
        """The reason in words."""
        wanted = _count_profiles(self.profiles)
        if self.never:
            return (
                f"{wanted} is more than queue {self.queue} may hold at all (spec.maximum {self.maximum}): ask for less,"
                f" or have the Queue's maximum raised"
            )
        return (
            f"queue {self.queue} may hold {self.maximum} (spec.maximum), and holds {self.held}: {wanted} waits until"
            f" pods of the queue end"
        )


class GangIncomplete(msgspec.Struct, frozen=True, tag=True):
    """The demand's gang has fewer pods than start together.

    Attributes:
        gang: the gang's name.
        size: the number of pods that start together; 0 if no PodGroup says it.
        exist: pods of the gang that exist.
        held: those of them that cannot be placed yet, since gates of others hold them or their request is refused.
    """

    WORD: ClassVar[str] = "gang_incomplete"

    gang: str
    size: int
    exist: int
    held: int = 0

    @property
    def text(self) -> str:
        """The reason in words."""
        if not self.size:
            count = f"no PodGroup of this name says how many pods, at most {GANG_SIZE:d}, start together"
        elif self.exist < self.size:
            count = f"{self.exist} of {self.size} pods exist"
        else:
            count = f"all {self.size} pods exist, but {self.held} cannot be placed yet: other gates hold them, or they"
            count += " were refused"
        return f"gang {self.gang}: {count}; its pods get their slices together, and hold none until then"


class GangTooLarge(msgspec.Struct, frozen=True, tag=True):
    """The cluster's cards could not hold the demand's gang even if all of them were empty.

    Attributes:
        gang: the gang's name.
        size: the number of pods that start together.
        wanted: what they request together, in words.
        most: the most of it that the empty cards could hold, in words.
    """

    WORD: ClassVar[str] = "gang_too_large"

    gang: str
    size: int
    wanted: str
    most: str

    @property
    def text(self) -> str:
        """The reason in words."""
        return (
            f"gang {self.gang}: its {self.size} pods request {self.wanted} together; all cards of the cluster hold at"
            f" most {self.most}, even empty. Ask for a smaller gang or smaller slices, or add nodes"
        )


class GangNoRoom(msgspec.Struct, frozen=True, tag=True):
    """There is no room for all pods of the demand's gang at once.

    Attributes:
        gang: the gang's name.
        size: the number of pods that start together.
        fit: those for which there is a place now.
        member: the pod of the gang that finds no place first, as ``namespace/name``.
        reason: its reason; None if the bound on one decision's work was reached.
    """

    WORD: ClassVar[str] = "gang_no_room"

    gang: str
    size: int
    fit: int
    member: str
    reason: "Reason | None"

    @property
    def text(self) -> str:
        """The reason in words."""
        why = self.reason.text if self.reason is not None else "planning them together exceeds the work of one decision"
        fit = f"{self.fit} of {self.size} pods have a place now, and all start together"
        return f"gang {self.gang}: {fit}. {self.member}: {why}"


Reason = (
    UnknownProfile
    | NeverFits
    | NoNode
    | Full
    | Fragmented
    | Reserved
    | QueueFull
    | GangIncomplete
    | GangTooLarge
    | GangNoRoom
)
#: What is known where no allocations were found whose end makes room: the search is bounded.
NO_ENDS = "no few pods were found whose end makes room"
#: Keys that a text names at most.
_KEYS_NAMED = 3


def room_word(profiles: Iterable[str]) -> str:
    """Names what pods with these profiles take: ``cards`` for whole cards and shares, ``memory slots`` for slices."""
    return "cards" if all(map(is_device_profile, profiles)) else "memory slots"


def _list_keys(keys: tuple[str, ...]) -> str:
    more = f" and {len(keys) - _KEYS_NAMED} more" if len(keys) > _KEYS_NAMED else ""
    return ", ".join(keys[:_KEYS_NAMED]) + more


def _count_profiles(profiles: Iterable[str]) -> str:
    """``28 x 1g.5gb, 3g.20gb``."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(profiles).items())


def _devices_short(devices: tuple[str, ...], free_slots: int, needed: int) -> str:
    """Too few free devices on each node, in words; slots as in ``Fragmented``."""
    name, count = devices[0], len(devices)
    if not needed:
        return f"{name} is free on some nodes, but {_count_profiles(devices)} on none"
    slots = needed // count
    wanted = count_noun(count, "whole card") if slots == CARD_SLOTS else f"{count} {name}"
    return f"no node has {wanted} free; the most on one node is {free_slots // slots}"


def _holder(one: OwnedPlacement) -> str:
    at = one.placement
    where = "" if is_device_profile(at.profile) else f" at {at.start}"
    return f"{one.owner} ({at.profile}{where})"


def _freed_by(frees: tuple[OwnedPlacement, ...]) -> str:
    if not frees:
        return NO_ENDS
    parts = list(dict.fromkeys(map(_holder, frees)))
    verb = "ends" if len(parts) == 1 else "end"
    return f"room comes when {' and '.join(parts)} on node {frees[0].placement.node} {verb}"
