"""Reads the slices that a pod needs, as kubelet will allocate them, and bounds the size of such a pod.

Kubelet gives devices to containers one after the other: init containers in order, then the others. Devices of an
ordinary init container are first offered to later containers; devices of a sidecar (an init container with
``restartPolicy: Always``) or an app container stay with it. Each resource is counted separately, and a pod keeps all
its devices until it ends, so the slices of a pod are the sum over profiles of the devices that kubelet newly takes
(``k8s.io/kubernetes/pkg/kubelet/cm/devicemanager``, ``Allocate`` and ``devicesToReuse``).

This module knows no table of profiles: a profile here is the text after ``nvidia.com/mig-``.

Admission and the controller both apply the bounds (:func:`find_excess`), so that a decision about any pod costs little:
pods can exist that no webhook has reviewed. Counting is cheap: it parses and compares nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tessera.api.names import DEVICE_ENV, GPU_RESOURCES, LENDS_ANNOTATION, MIG_RESOURCE_PREFIX
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import Container, Pod, PodAffinity, PodAffinityTerm, PodSpec, TopologySpreadConstraint
from tessera.limits import (
    HOST_PORTS,
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    NODE_SELECTOR_LABELS,
    POD_AFFINITY_TERMS,
    POD_CLAIMS,
    POD_CONTAINERS,
    POD_QUANTITIES,
    POD_SLICES,
    SELECTOR_VALUES,
    SPREAD_CONSTRAINTS,
    TOLERATIONS,
)
from tessera.text import one_line

#: Digits of an amount that needs no check of its form.
_SHORT = 10


class SliceRequestError(Exception):
    """A container's request for slices cannot be served; the text is for the pod's author."""


class ContainerSlices(msgspec.Struct, frozen=True, kw_only=True):
    """Slices that one container requests.

    Attributes:
        name: the container's.
        counts: slices by profile in the resource's spelling, all positive.
        init: it is an init container.
        sidecar: it is an init container that keeps running.
    """

    name: str
    counts: Mapping[str, int]
    init: bool = False
    sidecar: bool = False


def container_slices(
    name: str,
    limits: Mapping[str, str],
    requests: Mapping[str, str],
    env: Iterable[str] = (),
    *,
    init: bool = False,
    sidecar: bool = False,
) -> ContainerSlices:
    """Reads and checks one container's request.

    Args:
        name: the container's, for messages.
        limits: its limits, resource to quantity.
        requests: its requests; a missing entry means the limit, as the API server fills it in.
        env: names of the environment variables that it sets.
        init: it is an init container.
        sidecar: it is an init container that keeps running.

    Raises:
        SliceRequestError: a count is no whole number or negative, request and limit differ, whole cards are asked for
            beside slices, or the container chooses its devices by environment.
    """
    counts = {}
    for resource in sorted({*limits, *requests}):
        if resource.startswith(MIG_RESOURCE_PREFIX):
            count = _count(name, resource, limits, requests)
            if count:
                counts[resource.removeprefix(MIG_RESOURCE_PREFIX)] = count
    if counts:
        _refuse_whole_cards(name, counts, limits, requests)
        _refuse_device_env(name, counts, env)
    return ContainerSlices(name=name, counts=counts, init=init, sidecar=sidecar)


def _count(name: str, resource: str, limits: Mapping[str, str], requests: Mapping[str, str]) -> int:
    where = f'container "{one_line(name)}"'
    if resource not in limits:
        raise SliceRequestError(
            f"{where}: {one_line(resource)} is in requests but not in limits; slices cannot be overcommitted: set it "
            "in limits"
        )
    limit = _whole_number(where, "limits", resource, limits[resource])
    if resource in requests and _whole_number(where, "requests", resource, requests[resource]) != limit:
        raise SliceRequestError(
            f"{where}: requests ask for {one_line(requests[resource])} and limits for {one_line(limits[resource])} "
            f"of {one_line(resource)}; "
            "slices cannot be overcommitted: make both equal or leave requests out"
        )
    return limit


def _whole_number(where: str, field: str, resource: str, text: Any) -> int:
    if isinstance(text, str) and len(text) < _SHORT and text.isascii() and text.isdecimal():
        return int(text)  # the usual form
    resource = one_line(resource)
    try:
        value = parse_quantity(str(text))
    except ValueError:
        raise SliceRequestError(
            f'{where}: {field} of {resource} is "{one_line(text)}", which is no quantity; write 1, 2, ...'
        ) from None
    if value < 0:
        raise SliceRequestError(f"{where}: {field} of {resource} is {text}; it must not be negative")
    if value != int(value):
        raise SliceRequestError(
            f"{where}: {field} of {resource} is {text}; slices come whole: write 1, or ask for a smaller profile"
        )
    return int(value)


def _refuse_whole_cards(
    name: str, counts: Mapping[str, int], limits: Mapping[str, str], requests: Mapping[str, str]
) -> None:
    for resource in GPU_RESOURCES:
        if any(text not in {"0", 0} for text in (limits.get(resource, "0"), requests.get(resource, "0"))):
            raise SliceRequestError(
                f'container "{one_line(name)}": asks for {_resource(counts)} beside {resource}; CUDA uses either '
                "slices or whole cards: use one of them, or two containers"
            )


def _refuse_device_env(name: str, counts: Mapping[str, int], env: Iterable[str]) -> None:
    for variable in env:
        if variable in DEVICE_ENV:
            raise SliceRequestError(
                f'container "{one_line(name)}": sets {variable} and asks for {_resource(counts)}; its slices decide '
                "which devices it sees: remove the variable"
            )


def _resource(counts: Mapping[str, int]) -> str:
    return MIG_RESOURCE_PREFIX + one_line(next(iter(counts)))


def pod_slices(containers: Sequence[ContainerSlices]) -> tuple[str, ...]:
    """Returns the slices that kubelet will take for a pod, one entry each, as profiles in the resource's spelling.

    Args:
        containers: in kubelet's order: init containers as listed, then the others.

    Raises:
        SliceRequestError: the slices are more than any node has.
    """
    profiles = sorted({profile for container in containers for profile in container.counts})
    if len(profiles) > POD_SLICES:
        raise _too_many(len(profiles))
    taken = {profile: _reserved_slices(containers, profile) for profile in profiles}
    total = sum(taken.values())
    if total > POD_SLICES:
        raise _too_many(total)
    return tuple(profile for profile in profiles for _ in range(taken[profile]))


def _too_many(slices: int) -> SliceRequestError:
    return SliceRequestError(
        f"asks for {slices} slices; all of a pod's slices are on one node, and no node has more than {POD_SLICES:d}: "
        "ask for fewer, or divide the work among pods"
    )


def _reserved_slices(containers: Sequence[ContainerSlices], profile: str) -> int:
    taken = reusable = 0
    for container in containers:
        need = container.counts.get(profile, 0)
        new = max(0, need - reusable)
        taken += new
        if container.init and not container.sidecar:
            reusable += new
        else:
            reusable -= need - new
    return taken


def slices_of(pod: Pod) -> tuple[ContainerSlices, ...]:
    """The slices that each container of a pod requests, in kubelet's order; containers without slices are left out.

    Raises:
        SliceRequestError: see :func:`container_slices`.
    """
    spec = pod.spec
    every = [(c, True) for c in spec.init_containers] + [(c, False) for c in spec.containers]
    return tuple(found for c, init in every if asks_for_slice(c) and (found := _read_slices(c, init=init)).counts)


def asks_for_slice(container: Container) -> bool:
    """True if the container names a MIG resource; cheap, since most pods name none."""
    resources = container.resources
    return any(name.startswith(MIG_RESOURCE_PREFIX) for name in (*resources.limits, *resources.requests))


def _read_slices(container: Container, *, init: bool) -> ContainerSlices:
    return container_slices(
        container.name,
        container.resources.limits,
        container.resources.requests,
        [variable.name for variable in container.env],
        init=init,
        sidecar=init and container.restart_policy == "Always",
    )


def requests_gpus(pod: Pod) -> bool:
    """True if any of its containers requests GPUs, slices or shares."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(
        name.startswith("nvidia.com/") and amount != "0"
        for container in containers
        for asked in (container.resources.limits, container.resources.requests)
        for name, amount in asked.items()
    )


def lends_to(lender: Pod, borrower: Pod) -> bool:
    """True if a pod says that it holds its slice for another one of its namespace, and belongs to that one."""
    meta, to = lender.metadata, borrower.metadata
    named = meta.namespace == to.namespace and meta.annotations.get(LENDS_ANNOTATION) == to.name
    return named and any((each.kind, each.uid) == ("Pod", to.uid) for each in meta.owner_references)


class PodSize(NamedTuple):
    """Counts of a pod's parts; ``terms``, ``expressions`` and ``values`` are those of required node affinity.

    Admission counts up to ``quantities``. Only the controller applies and counts the rest: terms of affinity and
    anti-affinity to pods, spread constraints, labels and values in the selectors of all these, ports, volume claims.
    """

    containers: int = 0
    selector: int = 0
    tolerations: int = 0
    terms: int = 0
    expressions: int = 0
    values: int = 0
    quantities: int = 0
    affinity_terms: int = 0
    anti_affinity_terms: int = 0
    spread: int = 0
    selector_values: int = 0
    ports: int = 0
    claims: int = 0


def find_excess(spec: PodSpec) -> str:
    """Names the limit that a pod exceeds, in words for its author; empty if there is none."""
    return find_size_excess(_size(spec), least=True)


def find_size_excess(size: PodSize, *, least: bool = False) -> str:
    """Names the limit that a pod of this size exceeds, in words for its author; empty if there is none.

    Args:
        size: the counts.
        least: one above its limit may stand for more: :meth:`tessera.kube.resources.pods.Pod.cut` left no more.
    """
    more = " or more" if least else ""
    one_label = "label the nodes that you mean by one label"
    counts = (
        ("the pod has", size.containers, POD_CONTAINERS, "divide it into several pods"),
        ("node selector has", size.selector, NODE_SELECTOR_LABELS, one_label),
        ("the pod has", size.tolerations, TOLERATIONS, "tolerate a key with the operator Exists"),
        ("node affinity has", size.terms, NODE_AFFINITY_TERMS, "name many values in one term, by In"),
        ("node affinity has", size.expressions, NODE_AFFINITY_EXPRESSIONS, one_label),
        ("node affinity has", size.values, NODE_AFFINITY_VALUES, one_label),
        ("the pod has", size.quantities, POD_QUANTITIES, "ask for fewer resources"),
        ("pod affinity has", size.affinity_terms, POD_AFFINITY_TERMS, "name many values in one term, by In"),
        ("pod anti-affinity has", size.anti_affinity_terms, POD_AFFINITY_TERMS, "name many values in one term, by In"),
        ("the pod has", size.spread, SPREAD_CONSTRAINTS, "spread over zone and host"),
        ("pod affinity and spread have", size.selector_values, SELECTOR_VALUES, "label the pods meant by one label"),
        ("the pod has", size.ports, HOST_PORTS, "name the ports of the host alone"),
        ("the pod has", size.claims, POD_CLAIMS, "put the data into fewer volumes"),
    )
    return next(
        (
            f"{subject} {count:,}{more if count == limit + 1 else ''} {limit.unit}, {limit} are allowed: {remedy}"
            for subject, count, limit, remedy in counts
            if count > limit
        ),
        "",
    )


def _size(spec: PodSpec) -> PodSize:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    few = terms[:NODE_AFFINITY_TERMS]
    tests = [test for term in few for test in (*term.match_expressions, *term.match_fields)]
    containers = (*spec.init_containers, *spec.containers)
    affinity_terms = _terms(spec.affinity.pod_affinity if spec.affinity is not None else None)
    anti_affinity_terms = _terms(spec.affinity.pod_anti_affinity if spec.affinity is not None else None)
    spread = spec.topology_spread_constraints
    rules: tuple[PodAffinityTerm | TopologySpreadConstraint, ...] = (
        *affinity_terms[:POD_AFFINITY_TERMS],
        *anti_affinity_terms[:POD_AFFINITY_TERMS],
        *spread[:SPREAD_CONSTRAINTS],
    )
    return PodSize(
        containers=len(containers),
        selector=len(spec.node_selector),
        tolerations=len(spec.tolerations),
        terms=len(terms),
        expressions=len(tests),
        values=sum(len(test.values) for test in tests),
        quantities=sum(len(each.resources.limits) + len(each.resources.requests) for each in containers),
        affinity_terms=len(affinity_terms),
        anti_affinity_terms=len(anti_affinity_terms),
        spread=len(spread),
        selector_values=sum(map(selector_values, rules)),
        ports=sum(len(each.ports) for each in containers),
        claims=sum(each.persistent_volume_claim is not None or each.ephemeral is not None for each in spec.volumes),
    )


def _terms(rule: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return rule.required if rule is not None else ()


def selector_values(rule: PodAffinityTerm | TopologySpreadConstraint) -> int:
    """Labels and values in the selectors of a rule about other pods."""
    selectors = [rule.label_selector]
    names = 0
    if isinstance(rule, PodAffinityTerm):
        selectors.append(rule.namespace_selector)
        names = len(rule.namespaces)
    return names + sum(
        len(each.match_labels) + sum(1 + len(test.values) for test in each.match_expressions)
        for each in selectors
        if each is not None
    )
