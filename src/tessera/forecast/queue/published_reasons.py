"""The reasons that the controller publishes: those of the last plans, brought up to date.

A pod is planned again only after a change of nodes that it can use, so its last reason may be old. Before a reason is
published, this module looks again for slices whose end makes room, and counts the cards that are away for a fault.

Where the fewest pods whose end makes room are too many to search for (:mod:`tessera.placement.explain` tries all sets
of up to three owners), the largest owners end first until the slices fit; then each that need not end is left out. No
smaller part of the result would do, though another set may have fewer.

An :class:`Announcer` decides what to publish of a forecast: position and start to waiting pods, ends of leases to the
slicer.

No I/O and no clock.

Rules:

- A pod that waits is told by its condition ``tessera.dev/SlicePromised``: False with reason, position and start; True
  once it has its slices. A pod that waits for less than ``TELL_AFTER`` seconds gets none, so a burst costs nothing.
- A pod gets a write a minute at most, and none while nothing changed: the reason or its sentence, the basis, the
  position, whether it is alone, or the start by a quarter of the time that is left.
- Another reason is told after ``TELL_AFTER`` seconds already, with all else that the message says. The write after such
  an early one comes a minute later at the soonest, so a reason that changes to and fro gets two writes in 75 seconds.
- An Event comes with the first write, and when reason or basis changed.
- ``QUEUE_WRITES`` a round at most: those whose last write is oldest.
- The slicer is told of an expected end of a lease when it has moved as far as a start must. A lease of many kinds is
  always expected to end in so many minutes from now, so its end moves with the time. Reservations need no more, and the
  record of events stays short.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.filters import FreeAmounts
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import Unplaced
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.forecast.queue.held_back import HeldBack, HeldCards
from tessera.forecast.queue_page import QueuedPod, condition_reason, queued_text
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import StepBudget
from tessera.placement.explain import EXPLAINED_STEPS, RefusalExplainer, blocker_of
from tessera.placement.fleet import Fleet
from tessera.placement.node_fit import divide_over_cards
from tessera.reasons.reason import (
    Blocker,
    CardsAway,
    Fragmented,
    Full,
    GangIncomplete,
    GangNoRoom,
    Planning,
    QueueFull,
    Reason,
    Reserved,
)


def find_enough_ends(
    fleet: Fleet, profiles: Sequence[str], nodes: Iterable[str], work: StepBudget | None = None
) -> tuple[OwnedPlacement, ...]:
    """Returns the allocations of owners on the node where the fewest must end; empty if no node would have room.

    Args:
        fleet: the cards.
        profiles: the slices.
        nodes: the nodes; the search stops at a bound of its work, so the best come first.
        work: pays for it; by default ``EXPLAINED_STEPS``.
    """
    work = work or StepBudget(EXPLAINED_STEPS)
    best: tuple[int, tuple[OwnedPlacement, ...]] | None = None
    for node in nodes:
        if work.is_spent:
            break
        found = _Node(fleet, node, profiles, work).owners()
        if found is not None and (best is None or len(found) < best[0]):
            held = (one for card in fleet.cards(node) for one in card.allocations.values())
            best = (len(found), tuple(one for one in held if one.owner in found))
    return best[1] if best is not None else ()


class _Node:
    """The search on one node."""

    def __init__(self, fleet: Fleet, node: str, profiles: Sequence[str], work: StepBudget) -> None:
        self._profiles = profiles
        self._work = work
        #: Of each card, its table and what each owner has of it.
        self._cards = [(card.table, _by_owner(card.allocations, card.claims)) for card in fleet.cards(node)]

    def owners(self) -> frozenset[str] | None:
        """Returns owners whose end makes room, none of them in vain; None if all are not enough."""
        sizes: dict[str, int] = {}
        for _, held in self._cards:
            for owner, bits in held.items():
                sizes[owner] = sizes.get(owner, 0) + bits.bit_count()
        order = sorted(sizes, key=lambda owner: (-sizes[owner], owner))
        if not self._fits(order):
            return None
        few, enough = 0, len(order)
        while few < enough:
            middle = (few + enough) // 2
            if self._fits(order[:middle]):
                enough = middle
            else:
                few = middle + 1
        ended = order[:enough]
        for owner in reversed(order[:enough]):
            rest = [each for each in ended if each != owner]
            if not self._work.is_spent and self._fits(rest):
                ended = rest
        return frozenset(ended)

    def _fits(self, ended: Collection[str]) -> bool:
        gone = frozenset(ended)
        states = [
            (table, _union(bits for owner, bits in held.items() if owner not in gone), ())
            for table, held in self._cards
        ]
        return divide_over_cards(states, self._profiles, self._work) is not None


def _by_owner(allocations: dict[int, OwnedPlacement], claims: dict[int, int]) -> dict[str, int]:
    bits: dict[str, int] = {}
    for start, one in allocations.items():
        bits[one.owner] = bits.get(one.owner, 0) | claims[start]
    return bits


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


#: Most steps of searches for the pods that stand before others on the page `/queue`, where the fewest are more than
#: three. About a second, in pieces; pods whose turn comes later have no names before them.
BLOCKER_STEPS = 100_000

_replace = msgspec.structs.replace
#: Pods that a row names as standing before another; its position says how many wait.
_BLOCKERS = 8
#: Nodes with the most free slots, among which the holders in the way are sought.
_NODES_SEARCHED = 16
#: Nodes with the most free slots that are asked if their rules let one pod in, and the pods for which they are asked.
_NODES_ASKED, _PODS_ASKED = 64, 200
#: Steps of these rules for one pod.
_RULE_STEPS = 10_000
#: Steps of a plan for one pod.
_REPLAN_STEPS = 1_000
#: Share of the remaining steps that one search for them takes at most.
_SEARCH_SHARE = 0.4


class PublishedReasons:
    """The reasons of pods that wait for slices, at one time.

    Args:
        state: the slicer's state.
        held_back: the cards that are not allocated for a fault.

    Attributes:
        searches: searches for what must end first so far, of some 50 ms each; never decreases.
    """

    def __init__(self, state: SlicerState, held_back: HeldBack) -> None:
        self._state = state
        self._held_cards = HeldCards(state, held_back)
        self._explainer = RefusalExplainer(state.inventory.fleet, lambda _demand, _node: None, {})
        self.searches = 0
        #: Pods for which nodes were asked if their rules let them in.
        self._asked = 0
        #: Pays for these searches where the fewest are more than a few pods.
        self._work = StepBudget(BLOCKER_STEPS)
        self._planner = Planner(state)
        #: By profiles and constraints, the reason of a plan now; None if it finds a place.
        self._replanned: dict[Hashable, Reason | None] = {}
        #: By profiles and mask of nodes, the slices in the way.
        self._blockers: dict[tuple[tuple[str, ...], int], tuple[Blocker, ...]] = {}

    def find(self, pod: PodInfo, nodes: int) -> Reason:
        """Returns the reason of a pod that these nodes may take."""
        reason = self._reason(pod, nodes)
        if reason is None:
            return Planning()
        found = self._with_blockers(pod, nodes, reason)
        if pod.uid in self._state.updates:
            return _replace(self._state.updates[pod.uid], reason=found)
        away = self._held_cards.find(pod, nodes)
        if away and not reason.never and not isinstance(reason, QueueFull | Reserved | GangIncomplete):
            return CardsAway(len(away), found, tuple(sorted(set(away))))
        return found

    def _reason(self, pod: PodInfo, nodes: int) -> Reason | None:
        """The reason of the last plan, or that of a plan now where no node is left that the last one was about.

        A node that is gone makes no room, so pods are not planned anew for it.
        """
        reason = self._state.pods.reason_of(pod.uid)
        if nodes or not isinstance(reason, Full | Fragmented | Reserved):
            return reason
        key = (tuple(sorted(pod.profiles)), pod.constraints)
        if key not in self._replanned:
            self.searches += 1
            (found,) = self._planner.plan_alone([pod], StepBudget(_REPLAN_STEPS))
            self._replanned[key] = found.reason if isinstance(found, Unplaced) else None
        return self._replanned[key]

    def _with_blockers(self, pod: PodInfo, nodes: int, reason: Reason) -> Reason:
        """The reason with the slices that are in the way now."""
        if isinstance(reason, GangNoRoom) and reason.reason is not None:
            return _replace(reason, reason=self._with_blockers(pod, nodes, reason.reason))
        if not isinstance(reason, Full | Fragmented):
            return reason
        known = self._state.waiting.get(pod.uid)
        if known is None or not known.dependent:
            return _replace(reason, frees=self._blockers_on(pod, nodes))
        admitting = self._admitting(pod, nodes)
        return _replace(reason, frees=self._blockers_on(pod, admitting) if admitting else _first(reason.frees))

    def _admitting(self, pod: PodInfo, nodes: int) -> int:
        """The emptiest of these nodes whose rules about other pods and volumes let a pod in; 0 once too many asked."""
        if self._asked == _PODS_ASKED:
            return 0
        self._asked += 1
        self.searches += 1
        index, fleet = self._state.cluster.index, self._state.inventory.fleet
        known = sorted(name for name in index.names(nodes) if name in fleet)
        found = 0
        with self._planner.filters(StepBudget(_RULE_STEPS)) as filters:
            rules = [each for each in filters if not each.freed_with_cards and not isinstance(each, FreeAmounts)]
            for node in islice(fleet.emptiest_nodes(known), _NODES_ASKED):
                name = NodeName(node.name)
                if not any(rule.refusal(pod, name) for rule in rules):
                    found |= index.mask_of(name)
        return found

    def _blockers_on(self, pod: PodInfo, nodes: int) -> tuple[Blocker, ...]:
        """The fewest slices whose end makes room on these nodes, as the cards are now.

        Where that is more than a few pods, enough of them; none if the searches for other pods have cost too much.
        """
        key = (tuple(sorted(pod.profiles)), nodes)
        if key not in self._blockers:
            self.searches += 1
            fleet = self._state.inventory.fleet
            known = [name for name in self._state.cluster.index.names(nodes) if name in fleet]
            emptiest = tuple(node.name for node in islice(fleet.emptiest_nodes(sorted(known)), _NODES_SEARCHED))
            frees = self._explainer.no_room(pod.profiles, emptiest).frees if emptiest else ()
            if not frees and len(pod.profiles) > 1 and not self._work.is_spent:
                enough = find_enough_ends(fleet, pod.profiles, emptiest, self._work.part(_SEARCH_SHARE))
                frees = tuple(map(blocker_of, enough))
            self._blockers[key] = _first(frees)
        return self._blockers[key]


def _first(found: Iterable[Blocker]) -> tuple[Blocker, ...]:
    """The slices of the first pods."""
    slices = tuple(found)
    shown = frozenset(islice(dict.fromkeys(each.pod for each in slices), _BLOCKERS))
    return tuple(each for each in slices if each.pod in shown)


#: Most writes: conditions of waiting pods that one forecast writes, those that were written longest ago first. A few
#: writes a second; the others follow with the next forecast.
QUEUE_WRITES = 200

#: Seconds that a pod waits before it is told, also of another reason, and between two writes to a pod.
TELL_AFTER, PAUSE = 15.0, 60.0
#: Part of the remaining time by which a start or an end must move, and the least seconds.
_MOVED, _LEAST_MOVE = 0.25, 60.0
#: The reason of the condition once a pod has its slices.
PROMISED = "Promised"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A condition to write.

    Attributes:
        uid: the pod.
        namespace: its namespace.
        name: its name.
        waits: False once the pod has its slices.
        reason: the condition's reason.
        text: its message.
        since: when its status became so: the time from which the age of a pod that waits counts, seconds since 1970.
        event: an Event with the same text is due.
    """

    uid: PodUid
    namespace: str
    name: str
    waits: bool
    reason: str
    text: str
    since: float
    event: bool = False


@dataclass(frozen=True, slots=True)
class _Told:
    """The last row that a pod was told, and when.

    Attributes:
        at: the time, seconds since 1970.
        row: the row.
        early: it came less than ``PAUSE`` after the one before.
        failed: the write failed.
    """

    at: float
    row: QueuedPod
    early: bool = False
    failed: bool = False


class Announcer:
    """Chooses the writes of each round."""

    def __init__(self) -> None:
        #: The last announcement to each waiting pod. The next round removes pods that no longer wait.
        self._told: dict[PodUid, _Told] = {}

    def choose(self, rows: Iterable[QueuedPod], now: float) -> Sequence[Announcement]:
        """Returns the writes that are due for pods that wait, those that were told longest ago first."""
        waiting: dict[PodUid, QueuedPod] = {PodUid(each.uid): each for each in rows}
        for uid in self._told.keys() - waiting.keys():
            del self._told[uid]
        due = [row for row in waiting.values() if self._is_due(row, now)]
        due.sort(key=lambda row: self._told[PodUid(row.uid)].at if PodUid(row.uid) in self._told else 0.0)
        return [self._announce(row, now) for row in due[:QUEUE_WRITES]]

    def note_failure(self, uid: PodUid) -> None:
        """Notes that a write failed: the pod is told again after ``TELL_AFTER``, those that waited longer before it."""
        if uid in self._told:
            self._told[uid] = replace(self._told[uid], failed=True)

    def _announce(self, row: QueuedPod, now: float) -> Announcement:
        uid = PodUid(row.uid)
        last = self._told.get(uid)
        before = None if last is None or last.failed else last
        self._told[uid] = _Told(now, row, early=before is not None and now - before.at < PAUSE)
        event = before is None or _kind(before.row) != _kind(row)
        return Announcement(
            uid,
            row.namespace,
            row.name,
            waits=True,
            reason=condition_reason(row.reason),
            text=queued_text(row),
            since=row.since,
            event=event,
        )

    def _is_due(self, row: QueuedPod, now: float) -> bool:
        if now - row.since < TELL_AFTER:
            return False
        before = self._told.get(PodUid(row.uid))
        if before is None:
            return True
        if before.failed:
            return now - before.at >= TELL_AFTER
        early = before.row.reason != row.reason and not before.early
        return now - before.at >= (TELL_AFTER if early else PAUSE) and _has_changed(before.row, row, now)


class ChangedEnds:
    """The ends that were told, and those to tell; seconds since 1970."""

    def __init__(self) -> None:
        #: By pod that still runs, what was told last.
        self._told: dict[PodUid, float] = {}
        self._due: dict[PodUid, float] = {}

    def update(self, ends: Mapping[PodUid, float], now: float) -> None:
        """Takes in the expected ends of all leases that are known now."""
        self._due = {uid: end for uid, end in ends.items() if _has_moved(self._told.get(uid), end, now)}
        self._told = {uid: self._due.get(uid, self._told.get(uid, end)) for uid, end in ends.items()}

    def pop(self) -> Mapping[PodUid, float]:
        """Returns the ends to tell, once."""
        due, self._due = self._due, {}
        return due


def _has_changed(before: QueuedPod, after: QueuedPod, now: float) -> bool:
    if any(tell(before) != tell(after) for tell in (_kind, _place)) or before.detail != after.detail:
        return True
    pairs = ((before.start.p50, after.start.p50), (before.start.p90, after.start.p90))
    return any(_has_moved(one, other, now) for one, other in pairs)


def _has_moved(one: float | None, other: float | None, now: float) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > max(_LEAST_MOVE, _MOVED * max(0.0, other - now))


def _place(row: QueuedPod) -> tuple[int, int | None, bool]:
    """What changes the words about a place: those behind a pod do not, but the first of them."""
    return (row.position, row.ahead, row.of == 1)


def _kind(row: QueuedPod) -> tuple[str, str]:
    return (row.reason, row.start.basis)
