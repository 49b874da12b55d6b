"""What is true of the slicer's state between any two events. Tests check it after each event."""

from collections import Counter
from collections.abc import Iterator

from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import NEXT, PROMISED, PodState, WaitingPod


def broken_rules(state: SlicerState) -> Iterator[str]:
    """Yields each rule that the state breaks, with the object.

    A pod or node that has changed is brought in line by the next decision; until then rules about it do not hold.
    """
    pods = state.pods
    for one in pods:
        yield from _broken_by(state, one)
    due = state.cluster.changed_pods
    waiting = {one.uid for one in pods if one.waits}
    if waiting != pods.waiting.keys():
        yield f"waiting has {pods.waiting.keys() ^ waiting} too many, or not"
    for index, member in ((pods.blocked, PodState.BLOCKED), (pods.limited, PodState.LIMITED)):
        if set(index) != set(pods.in_state(member)):
            yield f"{member.value} has {set(index) ^ set(pods.in_state(member))} too many, or not"
    for uid in pods.handed_over - {one.uid for one in pods if one.state in PROMISED}:
        yield f"pod {uid} is handed over and has no slices"
    if not state.reservations_due:
        kept = {uid for uid, one in state.reservations.items() if one.kept_for is None}
        for uid in kept - pods.waiting.keys() - due:
            yield f"slots are reserved for pod {uid}, which does not wait"
    # What nodes record of a pod that is gone goes back, of however many nodes.
    known = state.cluster.pods
    current = Counter(each.uid for each in state.allocations if not each.given_up and each.uid in known)
    for uid, count in current.items():
        if uid not in due and count > 1:
            yield f"pod {uid} has {count} current allocations"
        if uid not in due and uid in state.cluster.pods and pods.state_of(uid) not in PROMISED:
            yield f"pod {uid} has slices and is {pods.state_of(uid).value}"


def _broken_by(state: SlicerState, one: WaitingPod) -> Iterator[str]:
    name = f"pod {one.uid}, {one.state.value} after {one.previous.value},"
    if one.state is not one.previous and one.state not in NEXT[one.previous]:
        yield f"{name} made a step that the table does not have"
    if not one.waits and (one.reason is not None or one.dependent or one.refused_by_all or one.kind is not None):
        yield f"{name} has a reason to wait"
    queued = one.state in {PodState.LIMITED, PodState.RELIEVED, PodState.BLOCKED}
    if queued != (one.queue is not None):
        yield f"{name} is in queue {one.queue}"
    if one.state in {PodState.LIMITED, PodState.BLOCKED, PodState.REFUSED} and one.reason is None:
        yield f"{name} has no reason"
    if (one.denied is not None) != (one.state is PodState.DENIED) and one.uid not in state.cluster.changed_pods:
        yield f"{name} was denied: {one.denied is not None}"
    promised = state.allocations.current_of(one.uid) is not None
    if promised != (one.state in PROMISED) and one.uid not in state.cluster.changed_pods:
        yield f"{name} has slices: {promised}"


def validate(state: SlicerState) -> None:
    """Raises AssertionError with the rules that the state breaks, if it breaks any."""
    found = list(broken_rules(state))
    assert not found, "; ".join(found)
