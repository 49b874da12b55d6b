"""What shows a node's agent: its pod, and the conditions that it writes on its Node, also marked as a silent agent's.

A silent agent cannot take back what it said, so the controller sets its conditions to ``Unknown``, as Kubernetes does
with kubelet's: there, reason ``NodeStatusUnknown`` and message "Kubelet stopped posting node status.". The controller
writes as the agent's own field manager. So the agent's next write takes every field over, and a condition that a later
agent no longer has disappears with it.

Kubelet reports for every pod if it is ready, at once when a container ends and after each failed probe. So an agent's
own pod is its heartbeat, and costs the API server no extra writes.
"""

from typing import Any

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.driver_status import ADVERTISED_CONDITION
from tessera.kube.resources import Condition, Pod
from tessera.limits.messages import CONDITION_MESSAGE
from tessera.text import one_line

#: DaemonSet of the agents. This owner makes a pod an agent: every user may set the label, but only a user with rights
#: in Tessera's namespace can create a pod there.
AGENT_DAEMON_SET = ("apps/v1", "DaemonSet", "tessera-agent")


#: Label of the agents' pods, as deploy/ has it; it finds them, and proves nothing.
AGENT_LABEL = ("app.kubernetes.io/name", "tessera-agent")


def is_agent(pod: Pod) -> bool:
    """True if the agents' DaemonSet made the pod. The label alone proves nothing: any user can set it on a pod."""
    return pod.metadata.namespace == SYSTEM_NAMESPACE and any(
        owner.controller and (owner.api_version, owner.kind, owner.name) == AGENT_DAEMON_SET
        for owner in pod.metadata.owner_references
    )


SHARING, LAYOUT, HEALTH, MPS = "GpuSharingApplied", "GpuMigLayoutApplied", "GpuHealthy", "GpuMpsReady"
#: Every type that an agent may have written while there is a driver.
CARD_CONDITIONS = frozenset({SHARING, LAYOUT, HEALTH, MPS})
#: Field manager of these, and of ``GpuNodeReady``, which an agent writes without a driver too.
CARDS_MANAGER, ADVERTISED_MANAGER = "tessera-agent", "tessera-agent-driver"
#: The types that each of them writes, and all of these.
CONDITIONS_BY_MANAGER = {CARDS_MANAGER: CARD_CONDITIONS, ADVERTISED_MANAGER: frozenset({ADVERTISED_CONDITION})}
AGENT_CONDITIONS = CARD_CONDITIONS | {ADVERTISED_CONDITION}
#: The controller's condition of a node that came up: True once it offers all its GPUs, False if it does not at its
#: deadline. Nobody knows if it still does while its agent is silent. It has a field manager of its own, since other
#: parts of the controller apply conditions to the same nodes.
PROVISIONED, PROVISIONED_MANAGER = "GpuProvisioned", "tessera-provisioning"
#: What becomes ``Unknown`` when an agent is silent, by field manager.
MARKED_BY_MANAGER = CONDITIONS_BY_MANAGER | {PROVISIONED_MANAGER: frozenset({PROVISIONED})}
#: Reason of a condition whose writer is silent; the status is ``Unknown``.
AGENT_STATUS_UNKNOWN = "AgentStatusUnknown"


def is_marked_silent(condition: Condition) -> bool:
    """True if the controller marked a condition since the agent that wrote it is silent."""
    return condition.status == "Unknown" and condition.reason == AGENT_STATUS_UNKNOWN


def mark_silent(shown: Condition, why: str, node: str, now: str) -> dict[str, Any]:
    """The condition of a silent agent, in the form of an apply.

    The time of the last heartbeat stays: it is when the agent last spoke. What was wrong by its last word stays too.

    Args:
        shown: the condition as the Node shows it.
        why: the reason of the silence.
        node: the Node's name.
        now: the present time, RFC 3339.
    """
    before = f". It last said: {shown.message or shown.reason}" if shown.status == "False" else ""
    text = f"Tessera's agent stopped posting the state of the cards: {why}; see tessera why node/{node}{before}"
    found = {
        "type": shown.type,
        "status": "Unknown",
        "reason": AGENT_STATUS_UNKNOWN,
        "message": shown.message if is_marked_silent(shown) else one_line(text, CONDITION_MESSAGE),
        "lastTransitionTime": (shown.last_transition_time if shown.status == "Unknown" else None) or now,
    }
    heartbeat = shown.last_heartbeat_time
    return found if heartbeat is None else {**found, "lastHeartbeatTime": heartbeat}
