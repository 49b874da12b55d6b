"""The annotation ``tessera.dev/update`` of a pod: a wrong value would do nothing, so it is refused.

Of pods that no Deployment makes, no new one comes beside the old one: the annotation has no effect, and a warning.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.text import one_line
from tessera.webhook.base.budget import PodRefused, Rule

#: Kinds with which an update makes a pod beside the old one.
_MAKERS = frozenset({"Deployment", "ReplicaSet"})


def refuse_wrong_update(pod: Mapping[str, Any]) -> None:
    """Refuses a pod whose annotation has another value than the one there is.

    Raises:
        PodRefused: the text says what to write.
    """
    value = _value(pod)
    if value not in (None, HAND_OVER):
        raise PodRefused(
            Rule.UPDATE,
            f'annotation {UPDATE_ANNOTATION}: "{one_line(str(value), 60)}" is unknown: write {HAND_OVER}, so that an'
            " old pod of the Deployment ends for a new one without room, or remove it",
        )


def warn_of_idle_update(pod: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Yields a warning for a pod, or a template of an object of another kind, whose annotation does nothing."""
    if _value(pod) is not None and kind not in _MAKERS:
        yield (
            f"annotation {UPDATE_ANNOTATION} has no effect on a {kind}: only a Deployment makes new pods beside its old"
            " ones. Others leave their slots to the next pod without it"
        )


def _value(pod: Mapping[str, Any]) -> object:
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(UPDATE_ANNOTATION)
