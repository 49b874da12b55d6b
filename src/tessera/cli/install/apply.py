"""Reads the objects of an installation, and applies them one after the other, by server-side apply.

Rules:

- A field that an earlier installation set and this one does not set is removed, since both have one field manager.
- Fields that others set become ours. Fields that kubectl applied count as those of an earlier installation: server-side
  apply removes a field only if nobody else set it, so without this rule a field of ``tessera install -o yaml | kubectl
  apply -f -`` would stay forever. kubectl does the same when a user turns to ``--server-side``. Fields set in another
  way (``kubectl edit``, a controller) keep their owners. (Kubernetes API, ``ObjectMeta.managedFields``; ``FieldsV1``
  writes a set of fields as a tree.)
- After a definition, the installer waits until the API server serves it.
- Definitions and objects of NVIDIA's kinds that others made are not changed
  (:func:`tessera.cli.install.ownership.is_left_alone`).
- Objects that only an earlier installation needed are deleted: the right to read ConfigMaps in another namespace, the
  right to evict, protections that are left out, and the policy about pods that use GPUs without a request. The fields
  of ConfigMaps with the file of an option are withdrawn (:mod:`tessera.cli.install.ownership`): the node groups, and
  the authorities of registries unless builds still trust them. The ClusterPolicy and NVIDIADriver are
  different: a forgotten option must remove no driver, so they are deleted only if the user says so or if others replace
  them.
- A dry run sends the same requests as a dry run of the API server and writes nothing. It changes no owner, so it does
  not report an object whose only change is that a field set by kubectl would be removed.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import CLAIM_DRIVERS, DEVICE_ACCESS_POLICY, SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import REMOVAL_ANNOTATION
from tessera.cli.install.manifests import (
    AGENT,
    BINDING_KIND,
    CONFIG_MAP,
    CONFIG_ROLE,
    CONTROLLER,
    InstallChoices,
    Manifest,
    builds_mount_it,
    manifests,
)
from tessera.cli.install.ownership import (
    APPLY,
    FILES,
    content_of,
    get_object,
    has_applied,
    is_file,
    is_left_alone,
    is_made_class,
    is_ours,
    list_objects,
    take_over,
    withdraw_file,
)
from tessera.cli.install.variants import CERTIFICATE_OBJECTS, OBJECTS
from tessera.clock import Clock
from tessera.doctor.manifests import deploy_folder, install_manifests, page_manifests, read_manifests
from tessera.dra.driver_objects import device_classes
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.kube.client import Client
from tessera.kube.errors import Forbidden, NotFound
from tessera.kube.resources import CONFIGMAPS, NODES
from tessera.kube.resources.meta import Resource, resource_for
from tessera.nesting import decode_json
from tessera.text import count_noun

#: The file with OpenShift's security context constraints, below ``deploy/options``.
OPENSHIFT = "openshift/constraints.yaml"
#: The file with cert-manager's objects.
CERTIFICATES = "cert-manager/certificates.yaml"
#: The file with the live page, there.
DASHBOARD = "dashboard/dashboard.yaml"


def render(choices: InstallChoices) -> list[Manifest]:
    """Reads the files and returns all objects in the order in which they are applied."""
    return manifests(
        install_manifests(),
        option("evict.yaml"),
        choices,
        option("replace.yaml"),
        constraints=option(OPENSHIFT),
        certificates=option(CERTIFICATES),
        dashboard=page_manifests(),
        claims=option("claims.yaml"),
    )


def option(file: str) -> list[Manifest]:
    """The objects of a file below ``deploy/options``."""
    return read_manifests(deploy_folder() / "options" / file)


class AppliedObject(msgspec.Struct, frozen=True):
    """The result for one object.

    Attributes:
        name: the name as kubectl prints it, with the namespace: ``daemonset.apps/tessera-agent in tessera-system``.
        result: ``created``, ``configured``, ``unchanged`` or ``deleted``; ``replaced`` if an option's file replaced one
            that somebody else wrote; ``withdrawn`` if only our fields were removed; ``left`` if it has another owner,
            ``immutable`` if it should change and cannot.
    """

    name: str
    result: str


DRY_RUN = " (dry run)"
#: The results in the order in which they are counted.
_RESULTS = ("created", "configured", "replaced", "withdrawn", "deleted", "left", "immutable", "unchanged")
#: Longer texts of a result, for one object and for several.
_OF_ONE = {
    "immutable": "stays, it is immutable; if you do not need it, delete it with kubectl",
    "left": "skipped, it has another owner",
    "replaced": "configured: a ConfigMap made by hand was replaced",
    "withdrawn": "configured: Tessera's fields were removed, it stays since others wrote to it",
}
_OF_MANY = {
    "immutable": "immutable and left as it is",
    "left": "skipped (other owner)",
    "replaced": "made by hand and replaced",
    "withdrawn": "of others without Tessera's fields",
}
#: Workloads whose rollout the next steps may name: the first that is new or different.
_WORKLOADS = (("daemonset", AGENT), ("deployment", CONTROLLER), ("deployment", "tessera-webhook"))
_DRIVERS = ("clusterpolicy.nvidia.com/", "nvidiadriver.nvidia.com/")


def result_line(done: AppliedObject, *, dry: bool) -> str:
    """The line for one object; empty if it is unchanged."""
    if done.result == "unchanged":
        return ""
    return f"{done.name} {_OF_ONE.get(done.result, done.result)}{DRY_RUN if dry else ''}"


def summary_line(all_done: Sequence[AppliedObject], *, dry: bool) -> str:
    """The number of objects of each result: ``1 object created, 38 unchanged``."""
    counts = Counter(each.result for each in all_done)
    (first, number), *others = ((each, counts[each]) for each in _RESULTS if counts[each])
    parts = [f"{count_noun(number, 'object')} {_OF_MANY.get(first, first)}"]
    parts += [f"{count} {_OF_MANY.get(each, each)}" for each, count in others]
    return f"{', '.join(parts)}{DRY_RUN if dry else ''}"


def next_steps(all_done: Sequence[AppliedObject]) -> Iterator[str]:
    """The commands that show the progress of the changes; nothing without changes."""
    new = {each.name for each in all_done if each.result in {"created", "configured"}}
    for kind, name in _WORKLOADS:
        if f"{kind}.apps/{name} in tessera-system" in new:
            yield f"Watch it start: kubectl rollout status -n tessera-system {kind}/{name}"
            break
    if any(each.startswith(_DRIVERS) for each in new):
        yield "Watch the drivers: tessera driver status"
    elif any(each.name.startswith(_DRIVERS) and each.result == "deleted" for each in all_done):
        yield "Tessera removes the driver from each node when its pods with cards have ended: tessera driver status -v"


FIELD_MANAGER = "tessera-install"

#: Seconds that a definition may take to be served, and seconds between two requests.
_SERVING_TIMEOUT = 60.0
_PAUSE = 0.2

_RBAC = "rbac.authorization.k8s.io"
_EVICT = "tessera-agent-evict"
_REPLACE = "tessera-controller-replace"
_AGENT_CLAIMS = "tessera-agent-claims"
_VERSIONS = {
    **dict.fromkeys((BINDING_KIND, "ValidatingAdmissionPolicy"), "admissionregistration.k8s.io/v1"),
    "FlowSchema": "flowcontrol.apiserver.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
    **dict.fromkeys(("Certificate", "Issuer"), "cert-manager.io/v1"),
}
#: Kinds of objects in tessera-system only: an object of the same name in another namespace is not Tessera's.
_IN_SYSTEM = frozenset({"NetworkPolicy", "Certificate", "Issuer"})
#: Objects that only some options need: the kind, whether it is in namespaces, the name.
OPTIONAL: tuple[tuple[str, bool, str], ...] = (
    ("RoleBinding", True, CONFIG_ROLE),
    ("Role", True, CONFIG_ROLE),
    ("ClusterRoleBinding", False, _EVICT),
    ("ClusterRole", False, _EVICT),
    (BINDING_KIND, False, _EVICT),
    ("ValidatingAdmissionPolicy", False, _EVICT),
    ("ClusterRoleBinding", False, _REPLACE),
    ("ClusterRole", False, _REPLACE),
    *(
        (kind, False, name)
        for name in (_AGENT_CLAIMS, "tessera-controller-claims", "tessera-webhook-claims")
        for kind in ("ClusterRoleBinding", "ClusterRole")
    ),
    (BINDING_KIND, False, _AGENT_CLAIMS),
    ("ValidatingAdmissionPolicy", False, _AGENT_CLAIMS),
    *(("DeviceClass", False, each["metadata"]["name"]) for driver in CLAIM_DRIVERS for each in device_classes(driver)),
    (BINDING_KIND, False, DEVICE_ACCESS_POLICY),
    ("ValidatingAdmissionPolicy", False, DEVICE_ACCESS_POLICY),
    *((kind, kind in _IN_SYSTEM, name) for kinds, names in OBJECTS.values() for kind in kinds for name in names),
    *((kind, True, name) for kind in ("Certificate", "Issuer") for name in CERTIFICATE_OBJECTS),
)


async def apply_all(
    client: Client, clock: Clock, objects: Sequence[Manifest], *, dry: bool = False, drivers: bool | None = None
) -> AsyncIterator[AppliedObject]:
    """Applies all objects, and deletes the objects that only an earlier installation needed.

    Args:
        client: the cluster.
        clock: the clock for waits.
        objects: the objects in their order.
        dry: send dry-run requests, write nothing.
        drivers: True takes over a ClusterPolicy of another owner; False deletes Tessera's ClusterPolicy; None does
            neither.

    Raises:
        ApiError: the server refused an object; the objects before it are applied.
        TimeoutError: a definition is not served in time.
    """
    for each in objects:
        yield await _apply(client, each, dry=dry, over=drivers is True)
        if each["kind"] == "CustomResourceDefinition" and not dry:
            await _wait_until_established(client, clock, each["metadata"]["name"])
    async for resource, metadata in _unlisted_objects(client, objects):
        yield await _delete(client, resource, metadata, dry=dry)
    async for done in _withdraw_files(client, objects, dry=dry):
        yield done
    async for resource, metadata in _unlisted_dashboard(client, objects):
        yield await _delete(client, resource, metadata, dry=dry)
    async for done in _delete_drivers(client, objects, dry=dry, drivers=drivers):
        yield done


async def apply_drivers(
    client: Client, clock: Clock, objects: Sequence[Manifest], *, dry: bool = False, drivers: bool | None = None
) -> AsyncIterator[AppliedObject]:
    """Applies the driver objects only, once their kinds are served; the arguments are those of :func:`apply_all`.

    Raises:
        ApiError: the server refused an object.
        TimeoutError: a definition is not served in time.
    """
    for resource in () if dry else (CLUSTER_POLICIES, NVIDIA_DRIVERS):
        await _wait_until_established(client, clock, f"{resource.plural}.{resource.group}")
    for each in objects:
        yield await _apply(client, each, dry=dry, over=drivers is True)
    async for done in _delete_drivers(client, objects, dry=dry, drivers=drivers):
        yield done


async def _delete_drivers(
    client: Client, objects: Sequence[Manifest], *, dry: bool, drivers: bool | None
) -> AsyncIterator[AppliedObject]:
    """Deletes Tessera's driver objects that the new ones replace; all of them if ``drivers`` is False."""
    wanted = {(each["kind"], each["metadata"]["name"]) for each in objects if _is_about_drivers(each)}
    if wanted or drivers is False:
        async for resource, metadata in driver_objects(client):
            if (resource.kind, metadata["name"]) not in wanted:
                yield await _delete(client, resource, metadata, dry=dry)


def _is_about_drivers(manifest: Manifest) -> bool:
    return manifest["kind"] in {CLUSTER_POLICIES.kind, NVIDIA_DRIVERS.kind}


async def _delete(client: Client, resource: Resource[Any], metadata: Mapping[str, Any], *, dry: bool) -> AppliedObject:
    if not dry:
        await client.delete(resource, metadata["name"], metadata.get("namespace"))
    return AppliedObject(_object_name(resource, metadata), "deleted")


async def driver_objects(client: Client) -> AsyncIterator[tuple[Resource[dict[str, Any]], Mapping[str, Any]]]:
    """The ClusterPolicies and NVIDIADrivers that Tessera made."""
    for resource in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
        for item in await list_objects(client, resource):
            if is_ours(item, FIELD_MANAGER):
                yield resource, item["metadata"]


async def _apply(client: Client, manifest: Manifest, *, dry: bool, over: bool) -> AppliedObject:
    resource, metadata = resource_for(manifest), manifest["metadata"]
    before = await get_object(client, resource, metadata["name"], metadata.get("namespace"))
    after: Mapping[str, Any] | None = None
    if is_left_alone(manifest, before, FIELD_MANAGER, over=over):
        return AppliedObject(_object_name(resource, metadata), "left")
    if before is not None and not dry and not is_file(manifest):
        await take_over(client, resource, before, FIELD_MANAGER)
    try:
        answer = await client.request(
            "PATCH",
            resource.path(metadata.get("namespace"), metadata["name"]),
            query=[("fieldManager", FIELD_MANAGER), ("force", "true"), *([("dryRun", "All")] if dry else [])],
            body=manifest,
            content_type=APPLY,
        )
        after = decode_json(answer.body)
    except NotFound:
        if not dry:  # a dry run does not create the namespaces of later objects
            raise
    return AppliedObject(_object_name(resource, metadata), _result(manifest, before, after))


def _result(manifest: Manifest, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if before is None:
        return "created"
    if content_of(before) == content_of(after):
        return "unchanged"
    return "replaced" if is_file(manifest) and not has_applied(before, FIELD_MANAGER) else "configured"


async def _wait_until_established(client: Client, clock: Clock, name: str) -> None:
    resource = resource_for(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {}}
    )
    deadline = clock.monotonic() + _SERVING_TIMEOUT
    while True:
        conditions = (await client.get(resource, name)).get("status", {}).get("conditions") or ()
        if any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        if clock.monotonic() >= deadline:
            reason = "; ".join(each.get("message", "") for each in conditions) or "it has no condition yet"
            raise TimeoutError(f"the API server does not serve {name} after {_SERVING_TIMEOUT:.0f} seconds: {reason}")
        await clock.sleep(_PAUSE)


async def _unlisted_objects(
    client: Client, objects: Sequence[Manifest]
) -> AsyncIterator[tuple[Resource[dict[str, Any]], Mapping[str, Any]]]:
    wanted = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects}
    for kind, namespaced, name in OPTIONAL:
        where = SYSTEM_NAMESPACE if kind in _IN_SYSTEM else None
        if name != CONFIG_ROLE and (kind, where, name) in wanted:
            continue
        resource = optional_resource(kind, namespaced=namespaced)
        for item in await list_objects(client, resource, where, name):
            metadata = item["metadata"]
            if kind == "DeviceClass" and not is_made_class(item):
                continue
            if (kind, metadata.get("namespace"), name) not in wanted:
                yield resource, metadata


async def _withdraw_files(client: Client, objects: Sequence[Manifest], *, dry: bool) -> AsyncIterator[AppliedObject]:
    """Withdraws the files of options that are left out."""
    wanted = {each["metadata"]["name"] for each in objects if is_file(each)}
    wanted |= {CONFIG_MAP} if any(map(builds_mount_it, objects)) else set()
    resource = CONFIGMAPS.as_dicts()
    for name in (each for each in FILES if each not in wanted):
        found = await get_object(client, resource, name, SYSTEM_NAMESPACE)
        if found and has_applied(found, FIELD_MANAGER):
            result = await withdraw_file(client, found, FIELD_MANAGER, dry=dry)
            yield AppliedObject(_object_name(resource, found["metadata"]), result)


async def _unlisted_dashboard(
    client: Client, objects: Sequence[Manifest]
) -> AsyncIterator[tuple[Resource[dict[str, Any]], Mapping[str, Any]]]:
    """The live page's objects, if it was installed and is not any more. Its account is the last."""
    page = option(DASHBOARD)
    account = page[0]["metadata"]
    if any((each["kind"], each["metadata"]) == (page[0]["kind"], account) for each in objects):
        return
    if await get_object(client, resource_for(page[0]), account["name"], account["namespace"]) is None:
        return
    for each in reversed(page):
        resource, metadata = resource_for(each), each["metadata"]
        found = await get_object(client, resource, metadata["name"], metadata.get("namespace"))
        if found is not None and is_ours(found, FIELD_MANAGER) and each["kind"] != "NetworkPolicy":
            yield resource, metadata


def optional_resource(kind: str, *, namespaced: bool) -> Resource[dict[str, Any]]:
    """The resource of a kind in :data:`OPTIONAL`."""
    version = _VERSIONS.get(kind, f"{_RBAC}/v1")
    return resource_for({"apiVersion": version, "kind": kind, "metadata": {"namespace": ""} if namespaced else {}})


async def withdraw_removals(client: Client, *, dry: bool) -> AsyncIterator[str]:
    """Withdraws the requests of a removal that was interrupted, so that agents serve again; yields the nodes' names."""
    try:
        nodes = (await client.list(NODES)).items
    except Forbidden:  # who may install may not always list nodes; the agents' log names the annotation
        return
    for meta in (each.metadata for each in nodes if REMOVAL_ANNOTATION in each.metadata.annotations):
        if not dry:
            await client.merge_patch(NODES, meta.name, {"metadata": {"annotations": {REMOVAL_ANNOTATION: None}}})
        yield meta.name


def _object_name(resource: Resource[Any], metadata: Mapping[str, Any]) -> str:
    group = f".{resource.group}" if resource.group else ""
    where = f" in {metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{resource.kind.lower()}{group}/{metadata['name']}{where}"
