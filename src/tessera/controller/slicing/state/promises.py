"""Tells what has become of the slices that a pod was promised."""

from tessera.api.names import NodeName
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.slicer_state import SlicerState


def agent_is_down(state: SlicerState, node: NodeName) -> bool:
    """True if a node's agent is known to be down."""
    facts = state.cluster.nodes.get(node)
    return facts is not None and facts.agent is AgentState.DOWN


def is_withdrawn(state: SlicerState, pod: PodInfo) -> bool:
    """True if the slices of a pod were taken back and the scheduler has still not bound it."""
    return not pod.gated and not pod.node and is_told(state, pod)


def is_told(state: SlicerState, pod: PodInfo) -> bool:
    """True if the pod's condition says, or is about to say, that its slices were taken back."""
    one = state.pods.get(pod.uid)
    return pod.slices_withdrawn or (one is not None and bool(one.told))


def has_lost_its_turn(state: SlicerState, pod: PodInfo) -> bool:
    """True if a pod was bound after its slices had been taken back, and holds none of them any more."""
    waits = pod.unstarted or (bool(pod.node and pod.devices) and not pod.started)
    return not pod.terminating and waits and is_told(state, pod) and not state.allocations.of(pod.uid)


def is_placed_here(state: SlicerState, pod: PodInfo) -> bool:
    """True if Tessera has pinned the pod, and its namespace is managed.

    In other namespaces the mark counts for nothing: whoever may change pods there could write it.
    """
    return pod.pinned and state.cluster.is_managed(pod.namespace)


def is_short(allocation: Allocation, pod: PodInfo) -> bool:
    """True if a pod past the gate holds fewer whole cards or shares than it requests."""
    return allocation.by_pod and not pod.gated and len(allocation.slices) < len(pod.devices)
