"""Turns a pod's requirements into the resource that fulfils them: pod and offers in, patch out.

Rules:

- A pod without requirements is not changed.
- The container that ``kubectl.kubernetes.io/default-container`` names gets the resource, else the first one.
- A restriction to nodes is added to what the author wrote, never put in its place: every alternative of a required node
  affinity gets it as well.
- What was chosen and why is recorded on the pod, and a pod that has the record and the resource is left alone, so that
  a second call (reinvocation) patches nothing.

What the chosen resource itself entails, a gate and a charge for a slice on demand, is decided after this.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tessera.api.names import HOSTNAME_LABEL
from tessera.api.products import count_label
from tessera.api.requirements import CHOSEN, CHOSEN_REASON, RequirementError, requirements_of
from tessera.placement.offers import Choice, Impossible, KeptBy, Offer, choose

Json = Mapping[str, Any]
Operation = dict[str, Any]

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class NotTranslated(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created; the text is shown to its author."""


def translate(pod: Json, offers: Iterable[Offer]) -> Sequence[Operation]:
    """The operations of a JSON patch that give a pod the smallest offer it can work with.

    Args:
        pod: as it is to be created.
        offers: what the cluster's nodes have.

    Raises:
        NotTranslated: an annotation is wrong, or nothing of the cluster fulfils them.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    spec = pod.get("spec") or {}
    asked = _asked(spec)
    if annotations.get(CHOSEN) in asked:
        return ()
    try:
        requirements = requirements_of(annotations, asked)
    except RequirementError as error:
        raise NotTranslated(str(error)) from None
    if requirements is None:
        return ()
    choice = choose(requirements, offers)
    if isinstance(choice, Impossible):
        raise NotTranslated(choice.text)
    return [*_resource(spec, annotations, choice.resource), *_affinity(spec, choice), *_record(choice)]


def _asked(spec: Json) -> list[str]:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    fields = [(each.get("resources") or {}).get(field) for each in containers for field in ("limits", "requests")]
    return [name for field in fields for name in field or ()]


def _resource(spec: Json, annotations: Json, resource: str) -> list[Operation]:
    containers = spec.get("containers") or [{}]
    names = [container.get("name") for container in containers]
    default = annotations.get(DEFAULT_CONTAINER)
    index = names.index(default) if default in names else 0
    path = f"/spec/containers/{index}/resources"
    present = containers[index].get("resources")
    if present is None:
        return [{"op": "add", "path": path, "value": {"limits": {resource: "1"}, "requests": {resource: "1"}}}]
    return [
        {"op": "add", "path": f"{path}/{field}", "value": {**(present.get(field) or {}), resource: "1"}}
        for field in ("limits", "requests")
    ]


def _affinity(spec: Json, choice: Choice) -> list[Operation]:
    """Required node affinity: its terms are alternatives, so each is crossed with each alternative of ours."""
    if choice.kept_by is KeptBy.NOTHING:
        return []
    affinity = dict(spec.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    ours = _expressions(choice)
    terms = [each for term in required.get("nodeSelectorTerms") or () for each in _crossed(term, ours)]
    terms = terms or [{"matchExpressions": [expression]} for expression in ours]
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    return [{"op": "add", "path": "/spec/affinity", "value": {**affinity, "nodeAffinity": node}}]


def _crossed(term: Json, ours: Sequence[Json]) -> list[Json]:
    """A term with each of our expressions. One that says nothing matches no node, and has to stay so."""
    written = term.get("matchExpressions") or ()
    if not written and not term.get("matchFields"):
        return [term]
    return [{**term, "matchExpressions": [*written, expression]} for expression in ours]


def _expressions(choice: Choice) -> list[Json]:
    if choice.kept_by is KeptBy.PRODUCT:
        return [{"key": count_label(product), "operator": "Exists"} for product in choice.products]
    return [{"key": HOSTNAME_LABEL, "operator": "In", "values": list(choice.nodes)}]


def _record(choice: Choice) -> list[Operation]:
    """The pod has annotations: its requirements stand there."""
    return [
        {"op": "add", "path": "/metadata/annotations/" + key.replace("/", "~1"), "value": value}
        for key, value in ((CHOSEN, choice.resource), (CHOSEN_REASON, choice.reason))
    ]
