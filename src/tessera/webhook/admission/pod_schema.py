"""The types of those parts of a pod's JSON that admission reads. A body that breaks them is answered with 400.

A pod is decoded twice: into these types, which are discarded, and into plain JSON, from which the patch is computed.
The first decoding makes the second safe to read. ``null`` stands for a missing field, as in Kubernetes.
"""

from typing import Any

import msgspec

from tessera.api.pods.size_limits import PodSize

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
