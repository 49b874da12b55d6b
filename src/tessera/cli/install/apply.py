"""Brings the objects of an installation into a cluster: server-side apply, one after the other, in their order.

Rules:

- a field that an earlier installation set and this one does not is gone afterwards, since both are one field manager;
- fields that others set are taken over, which is what installing means; what kubectl applied counts as an earlier
  installation (:mod:`tessera.cli.install.apply`). A trial changes no owner, and so does not tell of an object
  of which nothing changes but that a field goes which kubectl set;
- definitions are waited for until the API server serves them;
- what others made of NVIDIA's kinds is left alone (:mod:`tessera.cli.install.apply`);
- objects that only an earlier installation needed are deleted: the right to read ConfigMaps in another namespace, the
  right to evict, the policy of pods that use GPUs without a request, the authorities of registries unless builds are
  told to trust them still. Not so the objects by which nodes have their drivers: to forget an option takes no driver
  away, they go where the user says so, or where others come in their place;
- a trial (``dry``) asks the API server the same and writes nothing.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.driver.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.api.gpu_operator.settings import SYSTEM_NAMESPACE
from tessera.api.names import DEVICE_ACCESS_POLICY
from tessera.cli.install.manifests import (
    AGENT,
    BINDING_KIND,
    CONFIG_MAP,
    CONFIG_ROLE,
    CONTROLLER,
    Manifest,
    builds_mount_it,
)
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import CONFIGMAPS
from tessera.kube.resources.meta import Resource, resource_for

#: Managers and operations of ``kubectl apply`` and of ``kubectl apply --server-side``.
_KUBECTL = frozenset({("kubectl-client-side-apply", "Update"), ("kubectl", "Apply")})

#: In which ``kubectl apply`` keeps what it applied; gone once that is ours.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

Entry = Mapping[str, Any]


def take_over_fields(entries: Sequence[Entry], manager: str, api_version: str) -> list[Entry] | None:
    """The owners once what kubectl applied is ours; ``None`` if kubectl applied nothing.

    Args:
        entries: the owners as they are, ``metadata.managedFields``.
        manager: our name.
        api_version: the version that the fields are named in; owners in another one stay.
    """
    theirs = [each for each in entries if _is_of(each, _KUBECTL, api_version)]
    if not theirs:
        return None
    ours = [each for each in entries if _is_of(each, frozenset({(manager, "Apply")}), api_version)]
    fields: Mapping[str, Any] = {}
    for each in (*ours, *theirs):
        fields = _union(fields, each.get("fieldsV1", {}))
    mine = {**(ours or theirs)[0], "manager": manager, "operation": "Apply", "fieldsV1": fields}
    return [*(each for each in entries if each not in ours and each not in theirs), mine]


def _is_of(entry: Entry, owners: frozenset[tuple[str, str]], api_version: str) -> bool:
    known = (entry.get("manager", ""), entry.get("operation", ""))
    return known in owners and entry.get("apiVersion") == api_version and not entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _union(one.get(key, {}), other.get(key, {})) for key in {**one, **other}}


_GROUP = "nvidia.com"
_PART_OF = "app.kubernetes.io/part-of"
_DEFINITION = "CustomResourceDefinition"


def is_left_alone(manifest: Mapping[str, Any], before: Mapping[str, Any] | None, manager: str, *, over: bool) -> bool:
    """Whether an object stays as it is.

    Args:
        manifest: what would be applied.
        before: the object as it is; None if there is none.
        manager: under which name Tessera applies.
        over: whether the user takes over what others made.
    """
    if before is None or is_ours(before, manager):
        return False
    if manifest["kind"] == _DEFINITION:
        return bool(manifest["spec"]["group"] == _GROUP)
    return bool(manifest["apiVersion"].startswith(f"{_GROUP}/")) and not over


def is_ours(obj: Mapping[str, Any], manager: str) -> bool:
    """Whether Tessera made an object: it says so in a label, or Tessera applied some of it."""
    metadata = obj.get("metadata") or {}
    if (metadata.get("labels") or {}).get(_PART_OF) == "tessera":
        return True
    owners = metadata.get("managedFields") or ()
    return any(each.get("manager") == manager and each.get("operation") == "Apply" for each in owners)


FIELD_MANAGER = "tessera-install"

#: Seconds that a definition may take to be served, and between two looks.
_PATIENCE = 60.0
_PAUSE = 0.2

_APPLY = "application/apply-patch+yaml"
_RBAC = "rbac.authorization.k8s.io"
_EVICT = "tessera-agent-evict"
_REPLACE = "tessera-controller-replace"
_VERSIONS = dict.fromkeys((BINDING_KIND, "ValidatingAdmissionPolicy"), "admissionregistration.k8s.io/v1")


class AppliedObject(msgspec.Struct, frozen=True):
    """What became of one object.

    Attributes:
        name: as kubectl prints it, and its namespace: ``daemonset.apps/tessera-agent in tessera-system``.
        result: ``created``, ``configured``, ``unchanged`` or ``deleted``; ``left`` if it is somebody else's.
    """

    name: str
    result: str


async def apply_all(
    client: Client, clock: Clock, objects: Sequence[Manifest], *, dry: bool = False, drivers: bool | None = None
) -> AsyncIterator[AppliedObject]:
    """Applies all objects, and deletes what only an earlier installation needed.

    Args:
        client: who installs.
        clock: what is waited by.
        objects: in their order.
        dry: ask the server, write nothing.
        drivers: the user wants Tessera's drivers, whoever made the ClusterPolicy that is there; or wants none, so that
            Tessera's goes. None does neither.

    Raises:
        ApiError: the server refused one; those before it are applied.
        TimeoutError: a definition is not served in time.
    """
    for each in objects:
        yield await _apply(client, each, dry=dry, over=drivers is True)
        if each["kind"] == "CustomResourceDefinition" and not dry:
            await _established(client, clock, each["metadata"]["name"])
    async for resource, metadata in _left_over(client, objects):
        yield await _deleted(client, resource, metadata, dry=dry)
    wanted = {(each["kind"], each["metadata"]["name"]) for each in objects if _is_about_drivers(each)}
    if wanted or drivers is False:
        async for resource, metadata in driver_objects(client):
            if (resource.kind, metadata["name"]) not in wanted:
                yield await _deleted(client, resource, metadata, dry=dry)


def _is_about_drivers(manifest: Manifest) -> bool:
    return manifest["kind"] in {CLUSTER_POLICIES.kind, NVIDIA_DRIVERS.kind}


async def _deleted(client: Client, resource: Resource[Any], metadata: Mapping[str, Any], *, dry: bool) -> AppliedObject:
    if not dry:
        await client.delete(resource, metadata["name"], metadata.get("namespace"))
    return AppliedObject(_printed(resource, metadata), "deleted")


async def driver_objects(client: Client) -> AsyncIterator[tuple[Resource[dict[str, Any]], Mapping[str, Any]]]:
    """The objects of Tessera's by which nodes have their drivers."""
    for resource in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
        for item in await list_objects(client, resource):
            if is_ours(item, FIELD_MANAGER):
                yield resource, item["metadata"]


async def list_objects(client: Client, resource: Resource[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The objects of a kind; none where the server does not know it."""
    try:
        return (await client.list(resource)).items
    except NotFound:
        return ()


async def _apply(client: Client, manifest: Manifest, *, dry: bool, over: bool) -> AppliedObject:
    resource, metadata = resource_for(manifest), manifest["metadata"]
    before = await get_object(client, resource, metadata["name"], metadata.get("namespace"))
    after: Mapping[str, Any] | None = None
    if is_left_alone(manifest, before, FIELD_MANAGER, over=over):
        return AppliedObject(_printed(resource, metadata), "left")
    if before is not None and not dry:
        await _take_over(client, resource, before)
    try:
        answer = await client.request(
            "PATCH",
            resource.path(metadata.get("namespace"), metadata["name"]),
            query=[("fieldManager", FIELD_MANAGER), ("force", "true"), *([("dryRun", "All")] if dry else [])],
            body=manifest,
            content_type=_APPLY,
        )
        after = msgspec.json.decode(answer.body)
    except NotFound:
        if not dry:  # a trial does not make the namespaces that later objects lie in
            raise
    result = "created" if before is None else "unchanged" if _content(before) == _content(after) else "configured"
    return AppliedObject(_printed(resource, metadata), result)


async def _take_over(client: Client, resource: Resource[dict[str, Any]], item: dict[str, Any]) -> None:
    """Makes what kubectl applied ours, whoever else writes the object meanwhile."""
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    while True:
        metadata = item["metadata"]
        owners = take_over_fields(metadata.get("managedFields", ()), FIELD_MANAGER, item["apiVersion"])
        if owners is None:
            return
        try:
            version = metadata["resourceVersion"]
            patch = {"metadata": {"managedFields": owners}}
            await client.merge_patch(resource, name, patch, namespace, resource_version=version)
        except Conflict:
            item = await client.get(resource, name, namespace)
        else:
            return


def _content(item: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a user means by an object: without its state, and the notes of the server and of kubectl."""
    if item is None:
        return {}
    annotations = {
        key: value for key, value in (item["metadata"].get("annotations") or {}).items() if key != LAST_APPLIED
    }
    metadata = {"labels": item["metadata"].get("labels"), "annotations": annotations}
    return {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}


async def _established(client: Client, clock: Clock, name: str) -> None:
    resource = resource_for(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {}}
    )
    deadline = clock.monotonic() + _PATIENCE
    while True:
        conditions = (await client.get(resource, name)).get("status", {}).get("conditions") or ()
        if any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        if clock.monotonic() >= deadline:
            told = "; ".join(each.get("message", "") for each in conditions) or "the API server has not looked at it"
            raise TimeoutError(f"definition {name} is not served after {_PATIENCE:.0f} seconds: {told}")
        await clock.sleep(_PAUSE)


async def _left_over(
    client: Client, objects: Sequence[Manifest]
) -> AsyncIterator[tuple[Resource[dict[str, Any]], Mapping[str, Any]]]:
    wanted = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects}
    for kind, namespaced, name in (
        ("RoleBinding", True, CONFIG_ROLE),
        ("Role", True, CONFIG_ROLE),
        ("ClusterRoleBinding", False, _EVICT),
        ("ClusterRole", False, _EVICT),
        ("ClusterRoleBinding", False, _REPLACE),
        ("ClusterRole", False, _REPLACE),
        (BINDING_KIND, False, DEVICE_ACCESS_POLICY),
        ("ValidatingAdmissionPolicy", False, DEVICE_ACCESS_POLICY),
    ):
        place = {"namespace": ""} if namespaced else {}
        version = _VERSIONS.get(kind, f"{_RBAC}/v1")
        resource = resource_for({"apiVersion": version, "kind": kind, "metadata": place})
        for item in (await client.list(resource, field_selector=f"metadata.name={name}")).items:
            metadata = item["metadata"]
            if (kind, metadata.get("namespace"), name) not in wanted:
                yield resource, metadata
    if ("ConfigMap", SYSTEM_NAMESPACE, CONFIG_MAP) in wanted or any(map(builds_mount_it, objects)):
        return
    authorities = await get_object(client, CONFIGMAPS.untyped(), CONFIG_MAP, SYSTEM_NAMESPACE)
    if authorities and is_ours(authorities, FIELD_MANAGER):
        yield CONFIGMAPS.untyped(), authorities["metadata"]


async def get_object(
    client: Client, resource: Resource[dict[str, Any]], name: str, namespace: str | None
) -> dict[str, Any] | None:
    """An object, or None."""
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        return None


def _printed(resource: Resource[Any], metadata: Mapping[str, Any]) -> str:
    group = f".{resource.group}" if resource.group else ""
    where = f" in {metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{resource.kind.lower()}{group}/{metadata['name']}{where}"


TRIAL = " (dry run)"
#: What became of objects, in the order in which they are counted.
_RESULTS = ("created", "configured", "deleted", "left", "unchanged")
#: Where one word is not enough.
_OF_ONE = {"left": "is somebody else's, and left as it is"}
_OF_MANY = {"left": "left alone"}
#: Processes of which one is named as what starts: the first that is new or different.
_STARTED = (("daemonset", AGENT), ("deployment", CONTROLLER), ("deployment", "tessera-webhook"))
_DRIVERS = ("clusterpolicy.nvidia.com/", "nvidiadriver.nvidia.com/")


def result_line(done: AppliedObject, *, dry: bool) -> str:
    """What is said of one object; empty if it stays as it is."""
    if done.result == "unchanged":
        return ""
    return f"{done.name} {_OF_ONE.get(done.result, done.result)}{TRIAL if dry else ''}"


def summary_line(all_done: Sequence[AppliedObject], *, dry: bool) -> str:
    """How many objects came to what: ``1 object created, 38 unchanged``."""
    counts = Counter(each.result for each in all_done)
    parts = [f"{counts[each]} {_OF_MANY.get(each, each)}" for each in _RESULTS if counts[each]]
    number, _, rest = ", ".join(parts).partition(" ")
    return f"{number} object{'s' if number != '1' else ''} {rest}{TRIAL if dry else ''}"


def next_steps(all_done: Sequence[AppliedObject]) -> Iterator[str]:
    """Where to see what was begun; nothing if nothing was."""
    new = {each.name for each in all_done if each.result in {"created", "configured"}}
    for kind, name in _STARTED:
        if f"{kind}.apps/{name} in tessera-system" in new:
            yield f"See it start: kubectl rollout status -n tessera-system {kind}/{name}"
            break
    if any(each.startswith(_DRIVERS) for each in new):
        yield "See drivers come: tessera driver status"
    elif any(each.name.startswith(_DRIVERS) and each.result == "deleted" for each in all_done):
        yield "See drivers go, from each node when its pods with cards have ended: tessera driver status -v"
