"""What pods of an update are told, in Events."""

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.messages import waiting_text
from tessera.reasons.reason import OldPods
from tessera.reasons.words import steps


def update_text(pod: PodInfo, reason: OldPods) -> str:
    """Returns the event message of a new pod of a Deployment that waits for the slots of an old one."""
    advice = "; ".join(steps(reason, pod.namespace))
    return f"{waiting_text(pod, reason)}{f'. To end this: {advice}' if advice else ''}"


def handed_over_text(pod: PodInfo) -> str:
    """Returns the event message of an old pod of a Deployment that is evicted for a new one."""
    return (
        f"To be evicted, unless a PodDisruptionBudget keeps it: {pod.name} is the new pod of its Deployment, has no"
        f" room beside it, and gets its slots (annotation {UPDATE_ANNOTATION}: {HAND_OVER})"
    )


def given_back_text(last: PodInfo, pod: PodInfo) -> str:
    """Returns the event message of a new pod of a Deployment that has failed, and is evicted for an old one."""
    why = f"a container was restarted {last.restarts} times" if last.restarts else "it is not ready after its deadline"
    if last.lacks_image:
        why = "its node does not get its image"
    return (
        f"To be evicted: {why}, so {pod.name} of the old revision gets the slots. This revision gets no further try:"
        " correct the pod template, or take the update back (kubectl rollout undo)"
    )
