"""Takes slices back from pods that are past Tessera's gate and that no scheduler binds, whatever keeps them.

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

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.proposals import Notice, Proposal, Proposer, Withdrawal, evict
from tessera.controller.slicing.state.messages import turn_lost_text, unbound_text
from tessera.controller.slicing.state.promises import has_lost_its_turn
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room

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

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: Pods with slices that are not bound, and since when they are watched, seconds since 1970; the first is due
        #: first.
        self._since: dict[PodUid, float] = {}
        #: When such a pod was last bound.
        self._last_bound = 0.0
        #: Pods that were bound after they had lost their slices, and when they are due.
        self._late: dict[PodUid, float] = {}

    @property
    def next_due(self) -> float | None:
        """When the first pod is due, seconds since 1970; None if there is none."""
        first = [next(iter(self._since.values())) + BOUND_WITHIN] if self._since else []
        return min((*first, *self._late.values()), default=None)

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed."""
        pod = self._state.cluster.pods.get(uid)
        waits = pod is not None and not pod.gated and not pod.node and not pod.terminating and not pod.finished
        if waits and self._state.allocations.current_of(uid) is not None:
            self._since.setdefault(uid, self._state.now)
        elif self._since.pop(uid, None) is not None and pod is not None and pod.node:
            self._last_bound = self._state.now
        if pod is None or not has_lost_its_turn(self._state, pod):
            self._late.pop(uid, None)
        else:  # kubelet starts a pod with whole cards at once
            self._late.setdefault(uid, self._state.now + (0.0 if pod.devices else LATE))

    def propose(self) -> Iterator[Proposal]:
        """Takes slices back from the pods that are due, and evicts those that are bound late."""
        for uid in [uid for uid, due in self._late.items() if due <= self._state.now]:
            del self._late[uid]
            yield from self._end_turn(self._state.cluster.pods[uid])
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
        if not has_lost_its_turn(self._state, pod):
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
