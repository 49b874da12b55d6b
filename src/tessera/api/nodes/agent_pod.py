"""Recognises the pod of a node's agent.

Kubelet reports for every pod if it is ready, at once when a container ends and after each failed probe. So an agent's
own pod is its heartbeat, and costs the API server no extra writes.
"""

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.kube.resources import Pod

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
