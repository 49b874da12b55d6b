"""Annotations about gangs and updates: a wrong value would do nothing or wait for ever, so it is refused.

A Job's pods show neither its ``parallelism`` nor its ``completions``. With the annotation ``tessera.dev/gang-size:
parallelism`` in its template the Job is sent to the webhook when it is created, and the annotation gets the number of
pods that run at the same time. So nobody needs the right to read Jobs. A later change of the Job does not change it.
A size that no owner fulfils shows later: a pod does not show how many its owner makes, and that number may change.

``tessera.dev/update`` has no effect on pods that no Deployment makes, since no new one comes beside the old one: their
author gets a warning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.api.pods.gangs import GANG_SIZE_ANNOTATION, SIZE_OF_JOB, GangError, read_gang
from tessera.api.pods.templates import JOB, TemplateKind
from tessera.limits.pods import GANG_SIZE
from tessera.text import one_line
from tessera.webhook.admission.pod_json import Operation
from tessera.webhook.base import PodRefused, Rule

_PATH = "/spec/template/metadata/annotations/" + GANG_SIZE_ANNOTATION.replace("~", "~0").replace("/", "~1")


def write_gang_size(kind: TemplateKind, item: Mapping[str, Any]) -> Sequence[Operation]:
    """Returns the operation that writes the number; none for another kind, or if the author wrote one.

    Raises:
        PodRefused: the Job runs more pods at a time than a gang may have.
    """
    spec = item.get("spec")
    if kind != JOB or not isinstance(spec, dict) or _annotation(spec) != SIZE_OF_JOB:
        return ()
    size = _count(spec.get("parallelism"), 1)
    size = min(size, _count(spec.get("completions"), size))
    if size > GANG_SIZE:
        raise PodRefused(
            Rule.SIZE,
            f"annotation {GANG_SIZE_ANNOTATION}: {SIZE_OF_JOB}: the Job runs {size} pods at a time, and a gang has"
            f" {GANG_SIZE:d} at most: lower spec.parallelism, or remove the annotation",
        )
    return ({"op": "add", "path": _PATH, "value": str(max(1, size))},)


def refuse_wrong_gang(pod: Mapping[str, Any]) -> None:
    """Refuses a pod from which no size of its gang can be read.

    Raises:
        PodRefused: the text names the label or annotation, and what to write.
    """
    metadata = pod.get("metadata") or {}
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    owner = (owners[0].get("name") or "", owners[0].get("uid") or "") if owners else ("", "")
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    try:
        read_gang("", labels, annotations, owner)
    except GangError as error:
        raise PodRefused(Rule.GANG, f"{error}") from None


def _annotation(spec: Mapping[str, Any]) -> object:
    at: Any = spec
    for name in ("template", "metadata", "annotations", GANG_SIZE_ANNOTATION):
        at = at.get(name) if isinstance(at, dict) else None
    return at


def _count(value: object, otherwise: int) -> int:
    """The value of a field; the API server refuses a Job in which it is no number."""
    return value if isinstance(value, int) else otherwise


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
