"""The pod that runs once on a node: the validation of its driver."""

from typing import Any

from tessera.api.driver.status import DRIVER_SET_LABEL, VALIDATION_APP
from tessera.driver.manifests.host import MARKERS
from tessera.driver.manifests.names import DRIVER_ACCOUNT, RUNTIME_CLASS, app_labels, validation_name

Json = dict[str, Any]


def validation_pod(image: str, *, node: str, node_uid: str, driver_set: str) -> Json:
    """Runs a program on the node's cards through its container runtime, and then says so by the markers.

    It asks for no card as a resource: those of the node are not advertised before it has succeeded.

    Args:
        image: Tessera's own.
        node: where.
        node_uid: that Node object's.
        driver_set: what is validated.
    """
    return {
        "metadata": {
            "name": validation_name(node_uid),
            "labels": {**app_labels(VALIDATION_APP), DRIVER_SET_LABEL: driver_set},
            # Goes with its node, also where nobody collects pods of nodes that are gone.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        },
        "spec": {
            "nodeName": node,
            "runtimeClassName": RUNTIME_CLASS,
            "restartPolicy": "OnFailure",
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-node-critical",
            "serviceAccountName": DRIVER_ACCOUNT,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "validate",
                    "image": image,
                    "command": ["tessera", "validate"],
                    "env": [
                        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
                    ],
                    # Writes markers into a folder of the host that belongs to root.
                    "securityContext": {"privileged": True, "runAsUser": 0, "seLinuxOptions": {"level": "s0"}},
                    "volumeMounts": [MARKERS.mount()],
                }
            ],
            "volumes": [MARKERS.volume()],
        },
    }
