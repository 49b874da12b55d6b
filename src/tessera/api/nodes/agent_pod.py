"""Recognises the pod of a node's agent, and tells if that pod is ready.

Kubelet says of every pod whether it is ready, at once when a container ends and after each failed probe. So an agent's
own pod is its heartbeat: it costs the API server nothing beyond what is written anyway.
"""

from tessera.api.gpu_operator.settings import SYSTEM_NAMESPACE
from tessera.kube.resources import Pod

#: DaemonSet of the agents. This owner makes a pod an agent: every tenant may use the label, but only who has rights in
#: Tessera's namespace can make a pod there.
AGENT_DAEMON_SET = ("apps/v1", "DaemonSet", "tessera-agent")


def is_agent(pod: Pod) -> bool:
    """Tells if the agents' DaemonSet made the pod. The label alone proves nothing: tenants can set it on their pods."""
    return pod.metadata.namespace == SYSTEM_NAMESPACE and any(
        owner.controller and (owner.api_version, owner.kind, owner.name) == AGENT_DAEMON_SET
        for owner in pod.metadata.owner_references
    )


def is_ready(pod: Pod) -> bool:
    """Tells if kubelet reports the pod as ready."""
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
