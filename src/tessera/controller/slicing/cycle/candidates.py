"""Step 2: which waiting pods are planned now.

Those that changed nodes concern, the first ones of queues that hold less than before, and those that wait for other
pods and volumes that have changed. The others keep their refusal.
"""

from collections.abc import Collection, Hashable
from collections.abc import Set as AbstractSet

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.planning.batch_placement import count_slots
from tessera.controller.slicing.planning.pod_kinds import PodKind
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState


def find_candidates(state: SlicerState, order: FairOrder, nodes: AbstractSet[NodeName]) -> Collection[PodUid]:
    """Returns the pods to plan.

    Args:
        state: the slicer's state, of which the memory of refusals changes.
        order: knows which pods all nodes refuse.
        nodes: the nodes that have changed since the last decision.
    """
    dependent = state.cluster.dependencies_changed
    limits = state.cluster.queues or order.refusals.kinds  # only for maxima is it known who is refused for long
    if limits and order.refusals.begin(nodes_changed=bool(nodes), dependencies_changed=dependent):
        _release_refused_pods(state, order)
    _replan_dependent_pods(state)
    _relieve_queues(state)
    pods = state.pods
    for uid in state.reservations:
        pods.separate(uid)
    found = dict.fromkeys(pods.next_in_round(_MostOfKind(state)))
    for uid in state.reservations:  # a pod with a reservation goes first, in every round
        if uid in pods.waiting and pods.is_due(uid):
            found[uid] = None
    for uid in found:  # time for which no node could take it does not count for its age
        if state.ages.is_idle(uid):
            state.cluster.pods[uid] = state.ages.settle(state.cluster.pods[uid], state.now)
    return found


def _release_refused_pods(state: SlicerState, order: FairOrder) -> None:
    """After a change of nodes, pods or volumes, lets no pod that all nodes refuse now close its queue any more."""
    firsts = [state.cluster.pods[uid] for _, uids in state.pods.limited.heads() for uid in uids[:1]]
    for pod in order.refused_by_all_nodes(firsts) if firsts else ():
        state.pods.move(pod.uid, PodState.QUEUED)
        state.pods.forget_refusal(pod.uid)


def _replan_dependent_pods(state: SlicerState) -> None:
    """After a change of pods or volumes, plans dependent pods again on all nodes."""
    if state.cluster.dependencies_changed:
        state.cluster.dependencies_changed = False
        for uid, one in state.waiting.items():
            if one.dependent:
                state.pods.forget_refusal(uid)


def _relieve_queues(state: SlicerState) -> None:
    """Lets the first pods of relieved queues be planned again.

    A pod that several models suit counts with the one of which it takes the least share, so a change of the numbers of
    cards may change what any pod would hold.
    """
    totals = dict(state.inventory.totals)
    if totals != state.counted_totals:
        state.counted_totals = totals
        state.pods.relieve_all()
    state.pods.relieve()


class _MostOfKind:
    """Tells how many pods of a kind the free slots might hold, and one more. For one decision."""

    def __init__(self, state: SlicerState) -> None:
        self._fleet = state.inventory.fleet
        self._free: int | None = None

    def __call__(self, kind: Hashable) -> int:
        """Returns the number for a :class:`PodKind`."""
        assert isinstance(kind, PodKind)
        if self._free is None:
            self._free = sum(node.free for node in self._fleet.fullest_nodes())
        return self._free // count_slots(self._fleet, kind.profiles) + 1
