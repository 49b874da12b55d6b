"""A pod's JSON: the types of those parts that admission reads, and the operations of the patch that it makes.

A body that breaks the types is answered with 400. A pod is decoded twice: into these types, which are discarded, and
into plain JSON, from which the patch is computed. The first decoding makes the second safe to read. ``null`` stands for
a missing field, as in Kubernetes.

Of JSON patches (RFC 6902) only ``add`` is used: it sets a member or, at ``-``, appends to a list. Nothing that an
author wrote is removed. Hand-written because the library jsonpatch copies the whole pod for each patch: four operations
take 189 us with it, 13 us here, and every pod of the cluster passes the webhook.

A wrong value of an annotation about gangs or updates is refused: it would do nothing, or its pod would wait for ever.

A Job's pods show neither its ``parallelism`` nor its ``completions``. With the annotation ``tessera.dev/gang-size:
parallelism`` in its template the Job is sent to the webhook when it is created, and the annotation gets the number of
pods that run at the same time. So nobody needs the right to read Jobs. A later change of the Job does not change it.
A size that no owner fulfils shows later: a pod does not show how many its owner makes, and that number may change.

``tessera.dev/update`` has no effect on pods that no Deployment makes, since no new one comes beside the old one: their
author gets a warning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.api.pod_annotations import GANG_SIZE_ANNOTATION, SIZE_OF_JOB, GangError, read_gang
from tessera.api.pod_templates import JOB, TemplateKind
from tessera.api.slice_requests import PodSize
from tessera.limits import GANG_SIZE
from tessera.text import one_line
from tessera.webhook.base import PodRefused, Rule

Text = str | None
#: A quantity is text in JSON; numbers are accepted too, as the API server does in manifests.
Quantities = dict[str, str | int | float] | None


class _JsonObject(msgspec.Struct, frozen=True, rename="camel"):
    """A JSON object; fields that this module does not name may have any value."""


class Named(_JsonObject, frozen=True):
    """An object with a name: an environment variable, a scheduling gate, a claim."""

    name: Text = None


class Resources(_JsonObject, frozen=True):
    """``resources`` of a container."""

    limits: Quantities = None
    requests: Quantities = None
    claims: list[Named] | None = None


class ContainerSchema(_JsonObject, frozen=True):
    """A container or init container."""

    name: Text = None
    resources: Resources | None = None
    env: list[Named] | None = None
    restart_policy: Text = None


class Expression(_JsonObject, frozen=True):
    """A test on a label or field."""

    key: Text = None
    operator: Text = None
    values: list[str] | None = None


class Term(_JsonObject, frozen=True):
    """An alternative of node affinity."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class Required(_JsonObject, frozen=True):
    """Required node affinity."""

    node_selector_terms: list[Term] | None = None


class NodeAffinitySchema(
    _JsonObject, frozen=True, rename={"required": "requiredDuringSchedulingIgnoredDuringExecution"}
):
    """Node affinity."""

    required: Required | None = None


class AffinitySchema(_JsonObject, frozen=True):
    """``spec.affinity``."""

    node_affinity: NodeAffinitySchema | None = None


class Spec(_JsonObject, frozen=True):
    """``spec``."""

    containers: list[ContainerSchema] | None = None
    init_containers: list[ContainerSchema] | None = None
    node_selector: dict[str, str] | None = None
    node_name: Text = None
    affinity: AffinitySchema | None = None
    scheduling_gates: list[Named] | None = None
    tolerations: list[Any] | None = None
    resource_claims: list[Named] | None = None


class Owner(_JsonObject, frozen=True):
    """An entry of ``ownerReferences``."""

    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class Metadata(_JsonObject, frozen=True):
    """``metadata``."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class PodSchema(_JsonObject, frozen=True):
    """A pod."""

    metadata: Metadata | None = None
    spec: Spec | None = None


def size_of(spec: Spec) -> PodSize:
    """Counts the parts of a pod that a review reads."""
    node = spec.affinity.node_affinity if spec.affinity else None
    terms = (node.required.node_selector_terms or []) if node and node.required else []
    tests = [test for term in terms for test in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    containers = [*(spec.init_containers or ()), *(spec.containers or ())]
    resources = [each.resources for each in containers if each.resources is not None]
    return PodSize(
        containers=len(containers),
        selector=len(spec.node_selector or ()),
        tolerations=len(spec.tolerations or ()),
        terms=len(terms),
        expressions=len(tests),
        values=sum(len(test.values or ()) for test in tests),
        quantities=sum(len(each.limits or ()) + len(each.requests or ()) for each in resources),
    )


def requested_amounts(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields container, resource and amount of all that a pod's ``spec`` asks for; a limit goes before a request."""
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        limits, requests = (resources.get(field) or {} for field in ("limits", "requests"))
        for resource, amount in {**limits, **requests, **limits}.items():
            yield container.get("name") or "", resource, str(amount)


#: One operation.
Operation = dict[str, Any]


def add_operation(path: Sequence[str], value: Any) -> Operation:
    """Returns the operation that sets the member at a path; the path's parts are unescaped."""
    return {
        "op": "add",
        "path": "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path),
        "value": value,
    }


def apply_operations(document: Any, operations: Sequence[Operation]) -> Any:
    """Returns the object after the operations; the given object and its parts do not change.

    Raises:
        LookupError: a parent is missing.
        ValueError: an operation is not ``add``.
    """
    for operation in operations:
        if operation["op"] != "add":
            raise ValueError(f"operation {operation['op']}: only add is applied here")
        document = _with(document, [_part(text) for text in operation["path"].split("/")[1:]], operation["value"])
    return document


def _part(text: str) -> str:
    return text.replace("~1", "/").replace("~0", "~")


def _with(at: Any, path: Sequence[str], value: Any) -> Any:
    """Returns a copy of the object in which only the parts on the path are new."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(at, list):
        if head == "-":
            return [*at, value]
        index = int(head)
        return [*at[:index], _with(at[index], rest, value), *at[index + 1 :]]
    return {**at, head: _with(at[head], rest, value) if rest else value}


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
