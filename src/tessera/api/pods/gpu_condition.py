"""The condition of a pod about the health of its cards, as the node's agent writes it."""

from tessera.api.names import GPU_CONDITION
from tessera.kube.resources import Condition, Pod


def gpu_condition(pod: Pod) -> Condition | None:
    """The pod's condition about its cards; None if it has none: its cards were always well, as far as is known."""
    return next((each for each in pod.status.conditions if each.type == GPU_CONDITION), None)
