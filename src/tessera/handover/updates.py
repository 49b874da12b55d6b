"""Updates of Deployments: in which a pod waits for room, which old pods may leave it slots, and how far new ones are.

The rules are those of :mod:`tessera.handover.hand_over`: no old pod ends for a new one that could not use its slots.
Owner references are written by tenants, so the server is asked about each ReplicaSet. Its answers are asked for anew
when pods of the update come or go, and before a pod ends by them. Pure: it reads the slicer's state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from tessera.api.names import NodeName, PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.cluster.filters import first_shortage
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.objects.resource_amounts import add_amounts
from tessera.controller.slicing.proposers.mover import EVICTION_SECONDS, MOVES_AFTER
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.queue_ledger import NO_SLOTS
from tessera.controller.slicing.state.reservation_rules import holders_of, holding_of, overlap
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room
from tessera.handover.owner_pods import (
    ASKED_SIBLINGS,
    Family,
    OwnerPods,
    family_of,
    owner_of,
    place_within,
    reserve_inherited,
)
from tessera.reasons.reason import Fragmented, UpdateStep
from tessera.text import one_line

#: Most updates that are looked at, each at every decision; of more, a namespace has its share.
UPDATES = 256
#: Seconds for which the API server's answer is fresh enough to evict by it.
FRESH = 10.0
#: Seconds after which it is asked again about an update of which nothing changes.
ASKED_AGAIN = 300.0
#: Least seconds between two such questions while the pods of an update come and go.
LEAST_PAUSE = 5.0
#: Most old pods of one update that are looked for, and named; the first one ends.
NAMED_PODS = 8
#: Restarts of a container after which a new pod has failed.
RESTARTS = 3
#: Most seconds for which images are waited for that may still come.
PULL_SECONDS = 600.0
#: Steps in which a pod waits for its images.
_PULL_STEPS = frozenset({UpdateStep.PULL, UpdateStep.IMAGE})


@dataclass(frozen=True)
class Update:
    """One Deployment in an update.

    Attributes:
        family: its owners' family.
        newest: its newest ReplicaSet.
        new: the living pods of the newest revision.
        old: those of older ones, the newest of them first.
    """

    family: Family
    newest: Workload
    new: Sequence[PodInfo]
    old: Sequence[PodInfo]


class Updates:
    """The updates, and the questions about them.

    Args:
        state: the slicer's state.
        pods: the pods of owners.

    Attributes:
        asked: the updates in which a pod waits, and when the API server was asked about each; without any there are no
            :attr:`unknown_owners`.
        unanswered: pods of updates of which the last review knew too little.
        dues: when a question is due again, by the last review.
    """

    def __init__(self, state: SlicerState, pods: OwnerPods) -> None:
        self._state = state
        self._pods = pods
        self.asked: dict[Family, float] = {}
        self.unanswered: AbstractSet[PodUid] = frozenset()
        self.dues: list[float] = []
        #: What the server said of owners; None if one does not exist.
        self._answers: dict[Owner, Workload | None] = {}

    # Questions

    def concern(self, uid: PodUid) -> bool:
        """True if a change of a pod, or its end, concerns an update."""
        found = self._pods.get(uid)
        return bool(self._pods.changed) if found is None else family_of(owner_of(found.pod)) in self._pods.updating

    @property
    def unknown_owners(self) -> Iterator[Owner]:
        """The owners about which somebody should ask the API server."""
        for family in self.asked:
            yield from (each for each in self._owners(family) if each not in self._answers)

    def note_owner(self, owner: Owner, workload: Workload | None) -> bool:
        """Takes in what the API server says of an owner; True if that concerns an update."""
        is_one = family_of(owner) in self.asked
        if is_one:
            self._answers[owner] = workload
        return is_one

    def ask(self, family: Family) -> None:
        """Has the API server asked about an update."""
        self.asked[family] = self._state.now
        self._pods.changed.discard(family)
        for each in self._owners(family):
            self._answers.pop(each, None)

    def is_fresh(self, update: Update) -> bool:
        """True if the answers about an update are new enough to evict by them."""
        return self._state.now - self.asked[update.family] <= FRESH

    def _owners(self, family: Family) -> Sequence[Owner]:
        return tuple(islice(self._pods.owners(family), ASKED_SIBLINGS))

    # Reviewing

    def review(self) -> Iterator[Update]:
        """Yields the updates of which enough is known."""
        self.dues = []
        unanswered: set[PodUid] = set()
        families = self._families()
        self._forget(families)
        for family in families:
            if self._is_answered(family):
                yield from self._updates(family)
            else:
                unanswered.update(each.uid for each in self._members(family))
        self.unanswered = unanswered

    def _families(self) -> list[Family]:
        """Returns the updates in which a pod waits for room, as many as are looked at."""
        found = [each for each in self._pods.updating if any(map(self.waits, self._members(each)))]
        if len(found) <= UPDATES:
            return found
        share = UPDATES // len({namespace for namespace, _ in found}) or 1
        counts: Counter[str] = Counter()
        few = []
        for each in found:
            counts[each[0]] += 1
            if counts[each[0]] <= share:
                few.append(each)
        return few[:UPDATES]

    def _members(self, family: Family) -> Iterator[PodInfo]:
        return (pod for owner in self._owners(family) for pod in self._pods.of(owner))

    def waits(self, pod: PodInfo) -> bool:
        """True if a pod lacks nothing but room."""
        reason = self._state.pods.reason_of(pod.uid)
        reserved = self._state.reservations.get(pod.uid)
        lacks = (reason is not None and competes_for_room(reason)) or (reserved is not None and reserved.is_inherited)
        return pod.uid in self._state.waiting and pod.ready_to_place and lacks

    def _forget(self, families: Iterable[Family]) -> None:
        kept = set(families)
        self.asked = {each: when for each, when in self.asked.items() if each in kept}
        self._answers = {each: found for each, found in self._answers.items() if family_of(each) in kept}

    def _is_answered(self, family: Family) -> bool:
        """True if the API server has said what the owners of an update are; has it asked when that is due."""
        since = self._state.now - self.asked.get(family, -ASKED_AGAIN)
        pause = LEAST_PAUSE if family in self._pods.changed else ASKED_AGAIN
        if since >= pause:
            self.ask(family)
        else:
            self.dues.append(self.asked[family] + pause)
        return all(each in self._answers for each in self._owners(family))

    def _updates(self, family: Family) -> Iterator[Update]:
        by_top: dict[str, list[tuple[Workload, Owner]]] = {}
        for owner in self._owners(family):
            workload = self._answers[owner]
            if workload is not None and workload.wanted and workload.revision and workload.keeps_old:
                by_top.setdefault(workload.top, []).append((workload, owner))
        for found in by_top.values():
            found.sort(key=lambda each: -each[0].revision)
            (newest, owner), *others = found
            old = [pod for _, each in others for pod in self._pods.of(each)]
            yield Update(family, newest, list(self._pods.of(owner)), old)


def find_old_pods(state: SlicerState, update: Update, pod: PodInfo) -> list[PodInfo]:
    """Returns the old pods whose slots would do for a new one, the best first, as many as are named."""
    ordered = sorted(update.old, key=lambda each: (bool(each.ready_since), each.profiles != pod.profiles, each.created))
    return list(islice((each for each in ordered if _may_leave(state, each, pod)), NAMED_PODS))


def _may_leave(state: SlicerState, old: PodInfo, pod: PodInfo) -> bool:
    """True if a new pod may get the slots of an old one, and can use them."""
    one = state.allocations.current_of(old.uid)
    if one is None or place_within(state, one, pod) is None:
        return False
    if not keeps_maximum(state, old, pod) or not _has_amounts(state, one, pod):
        return False
    return not any(_takes_precedence(each, old, pod) for each in reservations_on(state, old))


def ends(state: SlicerState, uid: PodUid) -> bool:
    """True if a pod is gone, or was asked to end."""
    pod = state.cluster.pods.get(uid)
    return pod is None or pod.terminating


def keeps_maximum(state: SlicerState, old: PodInfo, pod: PodInfo) -> bool:
    """True if the queue of a new pod may hold it in place of an old one, which may be of another queue."""
    queue = state.cluster.queue_of(pod)
    replaces = state.cluster.queue_of(old) == queue
    more = NO_SLOTS if replaces else holding_of(state, pod)
    return not state.ledger.is_above_maximum(queue, more)


def _has_amounts(state: SlicerState, one: Allocation, pod: PodInfo) -> bool:
    """True if a node has what else a new pod requests once the old one has left it."""
    node = state.cluster.nodes.get(one.node)
    used = dict(state.usage.used.get(one.node, {}))
    add_amounts(used, one.amounts, sign=-1)
    return node is not None and first_shortage(pod.amounts, used, node) is None


def reservations_on(state: SlicerState, old: PodInfo) -> Iterator[Reservation]:
    """Returns the reservations of slots that a pod holds."""
    one = state.allocations.current_of(old.uid)
    made = reserve_inherited(state, old, one.node, one.slices) if one is not None else None
    return (each for each in state.reservations.on(made.node) if overlap(each, made)) if made is not None else iter(())


def _takes_precedence(one: Reservation, old: PodInfo, pod: PodInfo) -> bool:
    """True if a reservation of others on an old pod's slots stays: of a preemption, a move, or another update."""
    if one.uid == pod.uid:
        return False
    return one.is_inherited or one.priority > old.priority or old.movable


class Progress:
    """What is known of the new pods of updates.

    Args:
        state: the slicer's state.
        moves: True if pods are moved, which goes first.

    Attributes:
        pulls: by waiting pod, the node to which somebody should bring its images.
        refusals: by waiting pod, what kubelet says there of an image that it does not get.
        dues: when time alone changes an answer given since the list was emptied, seconds since 1970.
    """

    def __init__(self, state: SlicerState, *, moves: bool) -> None:
        self._state = state
        self._moves = moves
        self.pulls: dict[PodUid, NodeName] = {}
        self.refusals: dict[PodUid, str] = {}
        self.dues: list[float] = []
        #: By waiting pod, the node on which its images are, and when they were asked for.
        self._pulled: dict[PodUid, NodeName] = {}
        self._pull_began: dict[PodUid, float] = {}

    # Images

    def note_images(self, uid: PodUid, node: NodeName, refusal: str) -> bool:
        """Takes in what has become of the images of a waiting pod; False if nobody waits for them there."""
        if self.pulls.get(uid) != node:
            return False
        if refusal:
            self.refusals[uid] = one_line(refusal, 200)
        else:
            self.refusals.pop(uid, None)
            self._pulled[uid] = node
        return True

    def has_images(self, pod: PodInfo, node: NodeName) -> bool:
        """True if a pod's images are on a node, or were waited for long enough; has them brought there otherwise."""
        if self._pulled.get(pod.uid) == node:
            return True
        if self.pulls.get(pod.uid) != node:
            self.pulls[pod.uid] = node
            self._pull_began[pod.uid] = self._state.now
            self.refusals.pop(pod.uid, None)
        if pod.uid in self.refusals:
            return False
        due = self._pull_began[pod.uid] + PULL_SECONDS
        self.dues.append(due)
        return self._state.now >= due

    def forget(self) -> None:
        """Forgets pods that wait for no images any more."""
        updates = self._state.updates
        waits = {uid for uid, each in updates.items() if each.step in _PULL_STEPS}
        self.pulls = {uid: node for uid, node in self.pulls.items() if uid in waits}
        self.refusals = {uid: said for uid, said in self.refusals.items() if uid in waits}
        self._pull_began = {uid: began for uid, began in self._pull_began.items() if uid in waits}
        self._pulled = {uid: node for uid, node in self._pulled.items() if uid in updates}

    # Pods

    def are_ready(self, update: Update) -> bool:
        """True if all new pods with slots are ready for as long as the Deployment asks for."""
        for pod in update.new:
            if self._state.allocations.current_of(pod.uid) is None:
                continue
            if not pod.ready_since:
                if pod.started:
                    self.dues.append(pod.started + update.newest.deadline)
                return False
            if self._state.now < pod.ready_since + update.newest.ready_for:
                self.dues.append(pod.ready_since + update.newest.ready_for)
                return False
        return True

    def may_end(self, update: Update, old: PodInfo, pod: PodInfo) -> bool:
        """False for a ready old pod while fewer pods are ready than wanted, until the deadline of the new pod.

        So an update that follows another at once does not end the last ready pod while those of the other one start.
        """
        if not old.ready_since or _count_ready(update) >= update.newest.wanted:
            return True
        due = parse_time_or_zero(pod.created) + update.newest.deadline
        self.dues.append(due)
        return self._state.now >= due

    def may_get_room(self, pod: PodInfo) -> bool:
        """True if slots come without the service's loss: those reserved for it are about to be free, or pods move."""
        own = self._state.reservations.get(pod.uid)
        if own is not None and all(ends(self._state, each.uid) for each in holders_of(self._state, own)):
            return True
        until = parse_time_or_zero(pod.created) + MOVES_AFTER + EVICTION_SECONDS
        may_move = self._moves and isinstance(self._state.pods.reason_of(pod.uid), Fragmented)
        if may_move and self._state.now < until:
            self.dues.append(until)
            return True
        return False

    def has_failed(self, update: Update, pod: PodInfo) -> bool:
        """True if a new pod with slots is not ready, and will hardly be."""
        if not pod.hands_over or pod.ready_since or self._state.allocations.current_of(pod.uid) is None:
            return False
        end = pod.started + update.newest.deadline
        if pod.started and pod.restarts < RESTARTS and self._state.now < end:
            self.dues.append(end)
        return pod.restarts >= RESTARTS or pod.lacks_image or bool(pod.started and self._state.now >= end)

    def is_marked(self, pod: PodInfo, newest: Workload) -> bool:
        """True if a pod of the same ReplicaSet and revision has failed before."""
        marks = (each for found in self._state.moves.values() for each in found if each.revision)
        return any((each.owner, each.revision) == (pod.owner, newest.revision) for each in marks)


def _count_ready(update: Update) -> int:
    return sum(bool(pod.ready_since) for pod in (*update.new, *update.old))
