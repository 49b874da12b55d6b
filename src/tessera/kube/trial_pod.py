"""Pods without rights that Tessera makes for a while: a check makes one to see how it fares, for 3 minutes at most."""

from collections.abc import Mapping
from typing import Any

#: Seconds for which the pod may exist.
TRIAL_SECONDS = 180.0
#: Seconds between looks at it.
TRIAL_POLL = 0.5
#: Security context of a container that writes nothing: the strictest of Kubernetes' pod security standards allows it.
CONFINED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def trial_spec(name: str, image: str, command: list[str], **container: Any) -> dict[str, Any]:
    """The spec of such a pod, as the strictest of Kubernetes' pod security standards allows it.

    Args:
        name: of its container.
        image: of its container.
        command: of its container.
        container: further fields of the container.
    """
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(TRIAL_SECONDS),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": name,
                "image": image,
                "command": command,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                **container,
            }
        ],
    }
