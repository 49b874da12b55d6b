"""Writes the size of a gang into the template of a Job whose author left it to the Job's own numbers.

A Job's pods show neither its ``parallelism`` nor its ``completions``. With the annotation ``tessera.dev/gang-size:
parallelism`` in its template the Job is sent to the webhook when it is created, and the annotation gets the number of
pods that run at the same time. So nobody needs the right to read Jobs. A later change of the Job does not change it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.pods.gangs import GANG_SIZE_ANNOTATION, SIZE_OF_JOB
from tessera.kueue.templates import JOB, TemplateKind
from tessera.limits.pods import GANG_SIZE
from tessera.webhook.admission.json_patch import Operation
from tessera.webhook.base.budget import PodRefused, Rule

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


def _annotation(spec: Mapping[str, Any]) -> object:
    at: Any = spec
    for name in ("template", "metadata", "annotations", GANG_SIZE_ANNOTATION):
        at = at.get(name) if isinstance(at, dict) else None
    return at


def _count(value: object, otherwise: int) -> int:
    """The value of a field; the API server refuses a Job in which it is no number."""
    return value if isinstance(value, int) else otherwise
