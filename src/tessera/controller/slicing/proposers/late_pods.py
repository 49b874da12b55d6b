"""Ends pods that stay too long, and takes slices back from pods that come too late.

**Overstays.** Others were promised the slots of a pod from its deadline on.

A pod with ``activeDeadlineSeconds`` may use reserved slots, and forecasts count on its end. Kubelet ends it then, but
not a pod that is being deleted: who deletes or evicts it chooses a grace period, of days if they like. So a pod that
holds slots has ended by its deadline and the grace period of its spec, whatever its deletion says:

- Such a pod is asked to end, with the grace period of its spec, once its deadline is over. A later grace period can
  only shorten an earlier one, and no budget protects a pod that is being deleted
  (``pkg/registry/core/pod/storage/eviction.go``).
- A pod that is not being deleted is evicted if it is there :data:`BACKFILL_MARGIN` after kubelet should have ended it.

All facts are in the pod, so a new controller decides the same.

**Unbound pods.** Some pods are past Tessera's gate, and no scheduler binds them.
A later gate may hold such a pod, its scheduler may preempt for it or wait for its volume, or say nothing at all. Rules:

- A pod that is not bound within :data:`BOUND_WITHIN` is told, and its slices go to the next pod. It is not evicted: its
  owner's next pod would be kept in the same way.
- Of a pod about which its scheduler has said nothing, this counts only while pods that were let go later are bound. If
  no scheduler works, nobody else could start either, and all keep their slices until one does.
- A pod that is bound after all gets slices in its turn. One that finds no room is evicted: the scheduler counts it on
  the node, and would refuse the pod that has its slices now.

The times are only in memory: a restarted controller counts from its start.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.proposals import Notice, Proposal, Proposer, Withdrawal, evict
from tessera.controller.slicing.state.messages import overstay_text, turn_lost_text, unbound_text
from tessera.controller.slicing.state.reservation_rules import BACKFILL_MARGIN
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room

#: Seconds until a pod that is still there is asked again.
ASKED_AGAIN = 60.0
#: Seconds by which a deletion may end later: the API server rounds its times to seconds.
_ROUNDING = 1.0


def overstays_from(pod: PodInfo) -> float | None:
    """Returns the time from which a pod stays too long, seconds since 1970; None if it never does."""
    if pod.deadline is None or not pod.started or not pod.node or pod.finished:
        return None
    end = pod.started + pod.deadline
    if not pod.terminating:
        return end + BACKFILL_MARGIN
    return end - pod.grace if pod.gone_by > end + _ROUNDING else None


class Overstays(Proposer):
    """Proposes to evict such pods.

    Args:
        state: the slicer's state.
    """

    follows = "deadline"

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: When a pod stays too long, or is asked again, seconds since 1970.
        self._due: dict[PodUid, float] = {}
        #: The same, the first at the front; an entry with another time than in ``_due`` is over.
        self._order: list[tuple[float, PodUid]] = []
        #: When a pod was asked; a subset of ``_due``.
        self._asked: dict[PodUid, float] = {}

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed."""
        pod = self._state.cluster.pods.get(uid)
        due = overstays_from(pod) if pod is not None and self._state.allocations.of(uid) else None
        if due is None:
            self._due.pop(uid, None)
            self._asked.pop(uid, None)
            self._find_next()
        else:
            self._set(uid, max(due, self._asked.get(uid, 0.0)))

    def propose(self) -> Iterator[Proposal]:
        """Evicts the pods that are due."""
        while self.next_due is not None and self.next_due <= self._state.now:
            uid = self._order[0][1]
            self._asked[uid] = self._state.now + ASKED_AGAIN
            self._set(uid, self._asked[uid])
            if ("pod", uid) not in self._state.busy:
                pod = self._state.cluster.pods[uid]
                yield from evict(pod, grace=max(1, int(pod.grace)))
                yield Notice(pod, "SliceDeadline", overstay_text(pod), warning=True)

    def _set(self, uid: PodUid, due: float) -> None:
        if self._due.get(uid) != due:
            self._due[uid] = due
            heappush(self._order, (due, uid))
            self._find_next()

    def _find_next(self) -> None:
        while self._order and self._due.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)
        self.next_due = self._order[0][0] if self._order else None


#: Seconds after which an unbound pod loses its slices: KAI decides within one of its cycles, of seconds, where its
#: queue has quota left; a volume is made within a minute or two.
BOUND_WITHIN = 300.0
#: Seconds for which kube-scheduler may be busy with pods that came before: it binds some 100 a second.
BACKLOG = 60.0
#: Seconds within which a pod that is bound late must get slices: those of pods that have just ended take some seconds
#: to be destroyed. Less than the time for which the scheduler may refuse the pod whose turn it is.
LATE = 30.0


class UnboundPods(Proposer):
    """Watches pods with slices until they are bound.

    Args:
        state: the slicer's state.
    """

    follows = "uid"

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: Pods with slices that are not bound, and since when they are watched, seconds since 1970; the first is due
        #: first.
        self._since: dict[PodUid, float] = {}
        #: When such a pod was last bound.
        self._last_bound = 0.0
        #: Pods that were bound after they had lost their slices, and when they are due.
        self._late: dict[PodUid, float] = {}

    def _find_next(self) -> None:
        first = [next(iter(self._since.values())) + BOUND_WITHIN] if self._since else []
        self.next_due = min((*first, *self._late.values()), default=None)

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed."""
        pod = self._state.cluster.pods.get(uid)
        waits = pod is not None and not pod.gated and not pod.node and not pod.terminating and not pod.finished
        if waits and self._state.allocations.current_of(uid) is not None:
            self._since.setdefault(uid, self._state.now)
        elif self._since.pop(uid, None) is not None and pod is not None and pod.node:
            self._last_bound = self._state.now
        if pod is None or not self._state.has_lost_its_turn(pod):
            self._late.pop(uid, None)
        else:  # kubelet starts a pod with whole cards at once
            self._late.setdefault(uid, self._state.now + (0.0 if pod.devices else LATE))
        self._find_next()

    def propose(self) -> Iterator[Proposal]:
        """Takes slices back from the pods that are due, and evicts those that are bound late."""
        for uid in [uid for uid, due in self._late.items() if due <= self._state.now]:
            del self._late[uid]
            yield from self._end_turn(self._state.cluster.pods[uid])
        yield from self._take_back()
        self._find_next()

    def _take_back(self) -> Iterator[Proposal]:
        while self._since and next(iter(self._since.values())) + BOUND_WITHIN <= self._state.now:
            uid = next(iter(self._since))
            since = self._since.pop(uid)
            pod, allocation = self._state.cluster.pods.get(uid), self._state.allocations.current_of(uid)
            if pod is None or allocation is None:
                continue
            if ("pod", uid) not in self._state.busy and self._is_kept(pod, since):
                yield Withdrawal(pod, allocation, unbound_text(pod, allocation.node))
            else:
                self._since[uid] = self._state.now

    def _end_turn(self, pod: PodInfo) -> Iterator[Proposal]:
        if not self._state.has_lost_its_turn(pod):
            return
        if pod.devices and len(self._state.devices.free_slices(pod.node, pod.devices)) == len(pod.devices):
            self._state.cluster.changed_pods.add(pod.uid)  # a pod there has ended in the same step
            return
        if pod.devices or competes_for_room(self._state.pods.reason_of(pod.uid)):
            yield Notice(pod, "SliceReclaimed", turn_lost_text(pod, pod.node), warning=True)
            yield from evict(pod)
        self._late[pod.uid] = self._state.now + LATE

    def _is_kept(self, pod: PodInfo, since: float) -> bool:
        """True if something keeps the pod itself, and not all pods."""
        is_silent = not pod.gates and not pod.preempting and not pod.unschedulable_message
        return not is_silent or self._last_bound >= since + BACKLOG
