"""Keeps slices free for the next pods of a queue's services: ``spec.spare`` of a Queue. No pod stands for them.

A service that grows, or loses a node, would otherwise wait until a batch pod ends. Rules:

- A spare slice is a reservation without a pod. It gets free slots where the queue's last pod with this profile may run;
  without any, those that empty soonest. It is made before waiting pods are planned.
- It is closed to pods of priority 0 and less, and open to those of a higher priority: it moves for them.
- It goes to a waiting pod of the queue with this one slice that finds no other room, and that a Deployment, a
  ReplicaSet or a StatefulSet wants. Owner references are written by tenants, so the API server is asked about each.
- While such a pod waits, no spare slice is made: the pod takes its turn like all others. So a queue that grows for ever
  gets no more than its spare slices before its turn.
- A waiting pod gets a reservation beside the spare slices where it has a place there, else on them. So none waits for
  ever for what a queue keeps.
- The images of the last pod with this profile come to the node before the next one does (:attr:`Spares.pulls`).
- A queue keeps none beyond its maximum, and spare slices count for no queue. Whoever may change Queues sets them; those
  are cluster-scoped.

The node's Instaslice object records spare slices like other reservations, so a new controller keeps them.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from heapq import nsmallest
from math import inf

from tessera.api.instaslice import Slice
from tessera.api.names import GATE, WHOLE_CARDS, NodeName, PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.batch_placement import Placed, slices_at
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.proposals import EndOfReservation, NewReservation, Proposal, Proposer
from tessera.controller.slicing.proposers.place_search import PlaceSearch
from tessera.controller.slicing.state.node_records import PATIENCE, RETRY, Reservation
from tessera.controller.slicing.state.reservation_rules import (
    add_holdings,
    free_spares,
    held_by,
    holders_of,
    holding_of,
    is_agent_away,
    kind_of,
    make_holds,
    overlap,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room
from tessera.handover.owner_pods import OwnerPods, family_of, owner_of, place_within, reserve_inherited
from tessera.handover.spare_sizes import EVERY, SpareDemand
from tessera.kube.resources import Toleration
from tessera.placement.cards import SPARE_OF
from tessera.placement.demand import StepBudget

#: Most kinds of spare slices that are sought in one decision, with these steps each, and pods looked at for one slice.
SOUGHT, STEPS, LOOKED_AT = 4, 5_000, 32
#: Of a queue without a pod that says more: the taint that keeps pods without GPUs off a node.
_TOLERANT = NodeConstraints(tolerations=(Toleration(key=WHOLE_CARDS, operator="Exists"),))

#: A queue and a profile.
Kind = tuple[str, str]


class Spares(Proposer):
    """Proposes to keep spare slices, and gives them to services.

    Args:
        state: the slicer's state.
        pods: the pods of owners.
    """

    follows = "maker"
    keeps_slots = True

    def __init__(self, state: SlicerState, pods: OwnerPods) -> None:
        self._state = state
        self._pods = pods
        self._planner = Planner(state)
        self._places = PlaceSearch(state, self._planner)
        #: Kinds of spare slices, as the pods were sorted by them.
        self._kinds: AbstractSet[Kind] = frozenset()
        #: By kind, the last pod that has such a slice, and the pods that may wait for one.
        self._like: dict[Kind, PodInfo] = {}
        self._waiting: dict[Kind, dict[PodUid, None]] = {}
        #: Kinds without a place, and when one is sought again though no node has changed.
        self._tries: dict[Kind, float] = {}
        self._workloads: dict[Owner, Workload | None] = {}
        #: Where images should come, and owners whose images have come to a node with a spare slice, or cannot.
        self._pulls: dict[PodUid, NodeName] = {}
        self._pulled: set[tuple[str, NodeName]] = set()
        #: What the numbers of ``auto`` come from, and when they are reckoned again.
        self._demands: dict[Kind, SpareDemand] = {}
        self._reckon_at = 0.0
        #: Living pods with their kind and family; since when those of them wait that came and got no spare slice
        #: (never, while something besides room holds them), and spare slices are missing.
        self._seen: dict[PodUid, tuple[Kind, str]] = {}
        self._since: dict[PodUid, float] = {}
        self._missing: dict[PodUid, float] = {}

    # What is known

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed, or is gone."""
        pod = self._state.cluster.pods.get(uid)
        kind = self._kind_of(pod) if pod is not None else None
        self._note_demand(uid, pod, kind)
        if pod is None or kind is None:
            for each in self._waiting.values():
                each.pop(uid, None)
        elif self._state.allocations.current_of(uid) is not None:
            self._like[kind] = pod
            self._waiting.get(kind, {}).pop(uid, None)
        elif pod.is_held and uid not in self._waiting.setdefault(kind, {}):
            self._waiting[kind][uid] = None
            self._workloads.pop(owner_of(pod), None)  # what it wants now

    def _note_demand(self, uid: PodUid, pod: PodInfo | None, kind: Kind | None) -> None:
        if pod is None or kind is None or pod.terminating or pod.finished:
            if (ended := self._seen.pop(uid, None)) is not None:
                self._demands[ended[0]].note_end(ended[1], self._state.now)
            self._since.pop(uid, None)
            return
        demand = self._demands.setdefault(kind, SpareDemand())
        has_slots = self._state.allocations.current_of(uid) is not None
        if uid not in self._seen:
            self._seen[uid] = (kind, "/".join(family_of(owner_of(pod))))
            is_new = demand.note_pod(self._seen[uid][1], parse_time_or_zero(pod.created) or self._state.now)
            if is_new and not has_slots:
                self._since[uid] = inf
        if has_slots:
            if (since := self._since.pop(uid, inf)) < inf:
                demand.note_wait(self._state.now - since)
        elif uid in self._since and (not pod.ready_to_place or self._since[uid] == inf):
            self._since[uid] = self._state.now if pod.ready_to_place else inf  # else something besides room holds it

    def _kind_of(self, pod: PodInfo) -> Kind | None:
        """Returns the spare slice that a pod could use by what it says; None for none."""
        has_one_slice = len(pod.profiles) == 1 and not pod.devices and pod.gang is None
        if not has_one_slice or not pod.maker or pod.maker.startswith("Job/"):
            return None
        kind = (self._state.cluster.queue_of(pod), pod.profiles[0])
        return kind if kind[1] in self._state.ledger.spares.get(kind[0], ()) else None

    @property
    def unknown_owners(self) -> Iterator[Owner]:
        """The owners about which somebody should ask the API server."""
        for pod in (pod for kind in free_spares(self._state) for pod in self._candidates(kind)):
            if owner_of(pod) not in self._workloads:
                yield owner_of(pod)

    def note_owner(self, owner: Owner, workload: Workload | None) -> None:
        """Takes in what the API server says of an owner."""
        if any(owner_of(pod) == owner for kind in free_spares(self._state) for pod in self._candidates(kind)):
            self._workloads[owner] = workload
            self._state.reservations_due = True

    def _kept(self) -> list[Reservation]:
        return list(self._state.reservations.spare.values())

    def _candidates(self, kind: Kind) -> Sequence[PodInfo]:
        """Returns pods that may get a spare slice, the first in order first."""
        return nsmallest(LOOKED_AT, self._able(kind), key=lambda each: (-each.priority, each.created, each.key))

    def _able(self, kind: Kind) -> Iterator[PodInfo]:
        """Yields pods of owners that want more, or of which nothing is known yet."""
        reservations, served = self._state.reservations, dict[Owner, bool]()
        for uid in self._waiting.get(kind, ()):
            pod = self._state.cluster.pods[uid] if uid in self._state.waiting else None
            if pod is None or not pod.ready_to_place or self._kind_of(pod) != kind or not self._lacks(pod):
                continue
            owner = owner_of(pod)
            if owner not in served:
                served[owner] = owner in self._workloads and self._count_lacking(owner) <= 0
            if not served[owner] and (uid not in reservations or reservations[uid].number):
                yield pod

    def _lacks(self, pod: PodInfo) -> bool:
        reason = self._state.pods.reason_of(pod.uid)
        return reason is not None and competes_for_room(reason)

    # Images

    @property
    def pulls(self) -> Mapping[PodUid, NodeName]:
        """By the last pod of each kind, a node with a spare slice that may lack its images."""
        return self._pulls

    def note_images(self, uid: PodUid, node: NodeName, _refusal: str) -> None:
        """Takes in that images are on a node, or do not come."""
        pod = self._state.cluster.pods.get(uid)
        if pod is not None and self._pulls.get(uid) == node:
            self._pulled.add((pod.owner, node))
            self._state.reservations_due = True

    def _find_pulls(self) -> None:
        likes = ((self._like.get(kind_of(one)), one.node) for one in self._kept())
        pairs = [(pod, node) for pod, node in likes if pod is not None and pod.uid in self._state.cluster.pods]
        self._pulled &= {(pod.owner, node) for pod, node in pairs}
        missing = [(pod.uid, node) for pod, node in pairs if (pod.owner, node) not in self._pulled and node != pod.node]
        self._pulls = dict(reversed(missing))
        self.asks = bool(self._pulls)

    # Keeping slots

    def review(self, nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Ends spare slices that are no longer right, then seeks those that are missing."""
        kinds = frozenset((name, profile) for name, spare in self._state.ledger.spares.items() for profile in spare)
        if self._kinds != kinds:
            self._kinds = kinds
            self._demands = {kind: each for kind, each in self._demands.items() if kind in kinds}
            self._seen = {uid: each for uid, each in self._seen.items() if each[0] in kinds}
            for uid in self._state.cluster.pods if kinds else ():
                self.observe(uid)
        self._reckon()
        wanted = self._wanted()
        for one in self._kept():
            if wanted.get(one.uid) != kind_of(one) or not self._is_sound(one):
                yield EndOfReservation(one)
        lacking: dict[Kind, list[PodUid]] = {}
        for uid, kind in wanted.items():
            if uid not in self._state.reservations:
                lacking.setdefault(kind, []).append(uid)
        missing = {kind: uids for kind, uids in lacking.items() if not any(self._able(kind))}
        self._tries = {kind: due for kind, due in self._tries.items() if kind in missing}
        able = [kind for kind in missing if nodes or self._tries.get(kind, 0.0) <= self._state.now]
        for kind in sorted(able, key=lambda each: self._tries.get(each, 0.0))[:SOUGHT]:
            for uid in missing[kind]:
                found = self._seek(uid, kind)
                yield from found
                if not found:
                    break
        self._set_due()

    def _reckon(self) -> None:
        """Sets the numbers of spare slices that queues leave to the controller: all when due, new ones at once."""
        state, ledger, due = self._state, self._state.ledger, self._state.now >= self._reckon_at
        if not state.now:
            return
        self._reckon_at = state.now + EVERY if due else self._reckon_at
        for queue in state.cluster.queues.values():
            for profile in sorted(each for each in queue.auto if due or (queue.name, each) not in ledger.reckoned):
                demand = self._demands.setdefault((queue.name, profile), SpareDemand())
                ledger.reckon(queue.name, profile, *demand.size(queue.waiting_price, state.now))

    def _note_missing(self) -> None:
        """Notes since when spare slices are missing, and how long those were that are free again, with their images."""
        now, wanted, kept = self._state.now, self._wanted(), self._state.reservations.spare
        missing: dict[PodUid, float] = {}
        for uid, kind in wanted.items() if now else ():
            one, like = kept.get(uid), self._like.get(kind)
            lacks_images = one is not None and like is not None and self._pulls.get(like.uid) == one.node
            if one is None or lacks_images or holders_of(self._state, one):
                missing[uid] = self._missing.get(uid, now)
            elif uid in self._missing and kind in self._demands:
                self._demands[kind].note_missing(now - self._missing[uid])
        self._missing = missing

    def _set_due(self) -> None:
        late = [each.made + each.patience for each in self._kept() if holders_of(self._state, each)]
        reckoned = [self._reckon_at] if any(each.auto for each in self._state.cluster.queues.values()) else []
        dues = (*late, *reckoned, *self._tries.values())
        self.next_due = min((each for each in dues if each > self._state.now), default=None)
        self._find_pulls()
        self._note_missing()

    def _wanted(self) -> Mapping[PodUid, Kind]:
        return {
            PodUid(f"spare-{number}:{profile}:{name}"): (name, profile)
            for name, spare in self._state.ledger.spares.items()
            for profile, count in spare.items()
            for number in range(count)
        }

    def _is_sound(self, one: Reservation) -> bool:
        """True if a spare slice may stay where it is."""
        state, node = self._state, self._state.cluster.nodes.get(one.node)
        if node is None or node.cordoned or make_holds(state, one.node, one.slices, one.key) != one.holds:
            return False
        holders = {each.uid for each in holders_of(state, one)}
        late = holders and state.now > one.made + one.patience
        return holders <= one.holders and not late and not is_agent_away(state, one)

    def _seek(self, uid: PodUid, kind: Kind) -> Sequence[Proposal]:
        """Returns what makes a spare slice; nothing if it has no place now."""
        queue, profile = kind
        pod = PodInfo(uid, queue, str(uid), profiles=(profile,), gates=(GATE,), constraints=_TOLERANT)
        like = self._like.get(kind)
        if like is not None:
            pod = replace(pod, constraints=like.constraints, amounts=like.amounts)
        before, self._tries[kind] = self._tries.get(kind, 0.0), self._state.now + RETRY
        own = [held_by(self._state, each) for each in self._kept() if each.queue[0] == queue]
        if self._state.ledger.is_above_maximum(queue, add_holdings([holding_of(self._state, pod), *own])):
            return ()
        reserved = list(self._state.reservations.values())
        for found in self._planner.plan_beside(reserved, [pod], {}, StepBudget(STEPS))[0]:
            if isinstance(found, Placed):
                return self._keep(uid, kind, found.node, found.slices, 0.0)
        place = self._places.find([pod], takes_spares=False).get(uid) if self._state.now >= before else None
        if place is None:
            return ()
        return self._keep(uid, kind, NodeName(place.placements[0].node), slices_at(place.placements), place.seconds)

    def _keep(
        self, uid: PodUid, kind: Kind, node: NodeName, slices: tuple[Slice, ...], seconds: float
    ) -> Sequence[Proposal]:
        state, key = self._state, f"{SPARE_OF}{kind[0]}"
        holds = make_holds(state, node, slices, key)
        if holds is None:
            return ()
        made = Reservation(
            uid=uid,
            key=key,
            queue=(kind[0], ()),
            priority=0,
            number=0,
            node=node,
            slices=slices,
            holds=holds,
            made=state.now,
            until=state.now + seconds,
            patience=max(PATIENCE, 2 * seconds),
            kept_for=Owner("", key, ""),
        )
        made.holders = {each.uid for each in holders_of(state, made)}
        others = [each for each in state.reservations.values() if overlap(each, made)]
        return [*map(EndOfReservation, others), NewReservation(None, made)]

    # Giving them

    def propose(self) -> Iterator[Proposal]:
        """Gives free spare slices to waiting pods of services."""
        lacking: dict[Owner, int] = {}
        for kind, free in free_spares(self._state).items():
            for heir in self._candidates(kind):
                owner = owner_of(heir)
                if owner not in lacking:
                    lacking[owner] = self._count_lacking(owner)
                made = self._take(heir, free) if lacking[owner] > 0 else None
                if made is None:
                    continue
                lacking[owner] -= 1
                self._since.pop(heir.uid, None)
                ended = (made[0], self._state.reservations.get(heir.uid))
                yield from (EndOfReservation(each) for each in ended if each is not None)
                yield NewReservation(heir, made[1])
        self._set_due()
        if not any(self._waiting.values()):
            self._workloads.clear()

    def _count_lacking(self, owner: Owner) -> int:
        """The pods without slots that the API server says that an owner wants."""
        workload = self._workloads.get(owner)
        return workload.wanted - sum(map(self._has_slots, self._pods.of(owner))) if workload is not None else 0

    def _take(self, pod: PodInfo, free: list[Reservation]) -> tuple[Reservation, Reservation] | None:
        """Takes a spare slice out for a pod, and makes the pod's reservation; None if no node lets it in."""
        for one in free:
            made = reserve_inherited(self._state, pod, one.node, one.slices)
            if made is not None and place_within(self._state, one, pod) is not None:
                free.remove(one)
                return one, made
        return None

    def _has_slots(self, pod: PodInfo) -> bool:
        own = self._state.reservations.get(pod.uid)
        return self._state.allocations.current_of(pod.uid) is not None or (own is not None and own.is_inherited)
