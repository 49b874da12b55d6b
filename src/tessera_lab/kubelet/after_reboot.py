"""What is left of a pod's containers when their node has rebooted.

The runtime finds its containers dead and knows no more (containerd: exit code 255, reason ``Unknown``). Kubelet makes a
new sandbox for a pod that may start again, and then its init containers run again as well; a pod that never restarts
has ended (``pkg/kubelet/kuberuntime/kuberuntime_manager.go``, ``computePodActions``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tessera_lab.kubelet.pod_status import ContainerRecord, Role, Running, Terminated, Waiting

#: What containerd says of a container whose end it did not see.
UNKNOWN_EXIT, UNKNOWN_REASON = 255, "Unknown"


def gone_down(spec: Mapping[str, Any], containers: Iterable[ContainerRecord], now: float) -> None:
    """Writes down that the node went down under the containers.

    Args:
        spec: the pod's.
        containers: its containers; changed in place.
        now: seconds since 1970, when the runtime notices.
    """
    again = spec.get("restartPolicy") != "Never"
    for record in containers:
        if isinstance(record.state, Running):
            record.state = Terminated(
                exit_code=UNKNOWN_EXIT,
                started=record.state.started,
                finished=now,
                container_id=record.container_id,
                reason=UNKNOWN_REASON,
            )
        if again and record.role is Role.INIT and isinstance(record.state, Terminated):
            record.last, record.state = record.state, Waiting("PodInitializing")
