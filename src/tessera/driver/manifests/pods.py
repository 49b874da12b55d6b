"""The pod that runs once on a node: the validation of its driver."""

from typing import Any

from tessera.api.driver.node_status import DRIVER_SET_LABEL, VALIDATION_APP
from tessera.driver.manifests.host import MARKERS
from tessera.driver.manifests.names import DRIVER_ACCOUNT, RUNTIME_CLASS, app_labels, validation_name

Json = dict[str, Any]

_CONTAINER = "validate"


def validation_pod(image: str, *, node: str, node_uid: str, driver_set: str, nri_plugin: bool = False) -> Json:
    """The pod that runs a program on the node's GPUs through its container runtime, and then writes the marker files.

    The pod requests no GPU as a resource: the node advertises none before the pod has succeeded.

    Args:
        image: Tessera's image.
        node: name of the node.
        node_uid: UID of that Node object.
        driver_set: the driver set that the pod validates.
        nri_plugin: the node's toolkit is a plugin of its container runtime; then the toolkit has no RuntimeClass.
    """
    through: Json = {} if nri_plugin else {"runtimeClassName": RUNTIME_CLASS}
    asked = {"annotations": {f"nvidia.cdi.k8s.io/container.{_CONTAINER}": "management.nvidia.com/gpu=all"}}
    return {
        "metadata": {
            "name": validation_name(node_uid),
            "labels": {**app_labels(VALIDATION_APP), DRIVER_SET_LABEL: driver_set},
            **(asked if nri_plugin else {}),
            # The pod is deleted with its node, also in clusters that do not collect pods of deleted nodes.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        },
        "spec": {
            "nodeName": node,
            **through,
            "restartPolicy": "OnFailure",
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-node-critical",
            "serviceAccountName": DRIVER_ACCOUNT,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": image,
                    "command": ["tessera", "validate"],
                    "env": [
                        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
                    ],
                    # The container writes markers into a folder of the host that belongs to root.
                    "securityContext": {"privileged": True, "runAsUser": 0, "seLinuxOptions": {"level": "s0"}},
                    "volumeMounts": [MARKERS.mount()],
                }
            ],
            "volumes": [MARKERS.volume()],
        },
    }
