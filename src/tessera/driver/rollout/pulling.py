"""The pod that brings a driver's image to a node, while the old driver serves.

It asks for nothing, so it fits on a full node; it is put on the node without the scheduler, so a cordon does not keep
it off; and it ends at once: what counts is that kubelet fetched the image. It does not carry the label that the set's
DaemonSet selects its pods by, which would adopt it. Its name follows from node and set, so that
a controller that asks again after it died finds the one that is there.
"""

import hashlib
from typing import Any

from tessera.driver.manifests.names import APP_LABEL
from tessera.driver.rollout.instructions import PullImage
from tessera.driver.rollout.node_view_reader import PULL_APP, PULL_SET_LABEL


def pull_pod(wish: PullImage) -> dict[str, Any]:
    """The pod's manifest, without its namespace."""
    return {
        "metadata": {
            "name": pull_name(wish.node, wish.set),
            "labels": {APP_LABEL: PULL_APP, PULL_SET_LABEL: wish.set},
            # Goes with its node, also where nobody collects pods of nodes that are gone.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": wish.node, "uid": wish.node_uid}],
        },
        "spec": {
            "nodeName": wish.node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": name} for name in wish.secrets],
            "containers": [
                {
                    "name": "pull",
                    "image": wish.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["true"],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def pull_name(node: str, set_: str) -> str:
    """The pod's name: at most 63 characters, whatever the node's has."""
    return f"tessera-pull-{set_[:20]}-{hashlib.sha256(node.encode()).hexdigest()[:12]}"
