"""A pod that a check makes to see how it fares, and deletes again: without rights, and for three minutes at most."""

from typing import Any

#: Seconds for which the pod may exist.
TRIAL_SECONDS = 180.0
#: Seconds between looks at it.
TRIAL_POLL = 0.5


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
