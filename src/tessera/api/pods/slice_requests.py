"""Reads the slices that a pod needs, as kubelet will allocate them.

Kubelet gives devices to containers one after the other: init containers in order, then the others. Devices of an
ordinary init container are first offered to later containers; devices of a sidecar (an init container with
``restartPolicy: Always``) or an app container stay with it. Each resource is counted separately, and a pod keeps all
its devices until it ends, so the slices of a pod are the sum over profiles of the devices that kubelet newly takes
(``k8s.io/kubernetes/pkg/kubelet/cm/devicemanager``, ``Allocate`` and ``devicesToReuse``).

This module knows no table of profiles: a profile here is the text after ``nvidia.com/mig-``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import DEVICE_ENV, GPU_RESOURCES, LENDS_ANNOTATION, MIG_RESOURCE_PREFIX
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import Container, Pod
from tessera.limits import POD_SLICES
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
