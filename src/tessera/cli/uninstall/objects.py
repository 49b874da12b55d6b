"""The objects of an installation, found by their names, their label and their owners, and the order in which they go.

- Objects of ``deploy/`` and its options go by name, in reverse order of the files.
- ConfigMaps and monitors of other names go if they have Tessera's label and an installation set it
  (:func:`tessera.cli.install.ownership.has_installed`): users may set it too. What others wrote into a ConfigMap that
  ``tessera install`` applied stays.
- The namespace ``tessera-system`` goes with all that is in it. ``instaslice-system`` may be a project of users: it
  stays if it has anything that Tessera did not make.
- NVIDIA's definitions and objects go only if Tessera made them, and a definition stays while objects of others exist.
- Definitions go last, since their objects go with them.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import DRIVER_APP
from tessera.cli.install.apply import FIELD_MANAGER, driver_objects
from tessera.cli.install.manifests import CONFIG_ROLE
from tessera.cli.install.ownership import (
    get_object,
    has_applied,
    has_installed,
    is_made_class,
    list_objects,
    withdraw_file,
)
from tessera.cli.uninstall.nodes import OURS, Done, Result
from tessera.doctor.manifests import deploy_folder, install_manifests, read_manifests
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import (
    CONFIGMAPS,
    CRDS,
    JOBS,
    LEASES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_TEMPLATES,
    PODS,
    RUNTIME_CLASSES,
    SECRETS,
    SERVICES,
)
from tessera.kube.resources.meta import Resource, resource_for

Dicts = Resource[dict[str, Any]]

PART_OF = "app.kubernetes.io/part-of"
_LABEL = f"{PART_OF}=tessera"
#: Kinds of which an installation makes objects whose names depend on its options.
_LABELLED = (
    ("v1", "ConfigMap"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
)
_ROLES = (("rbac.authorization.k8s.io/v1", "RoleBinding"), ("rbac.authorization.k8s.io/v1", "Role"))
#: Kinds that Tessera's processes make in their namespace.
_MADE = (CONFIGMAPS, LEASES, JOBS, PODS, POD_TEMPLATES)
#: The Secret that the webhook makes. It has a fixed name, so nobody needs the right to list Secrets.
_CERTIFICATE = "tessera-webhook-cert"
#: Kinds by which a namespace has something of users in it.
_OF_USERS = (PODS, SERVICES, PERSISTENT_VOLUME_CLAIMS, CONFIGMAPS)
#: ConfigMaps that every namespace has.
_EVERYWHERE = frozenset({"kube-root-ca.crt", "openshift-service-ca.crt"})


class InstalledObject(msgspec.Struct, frozen=True):
    """An object that may exist."""

    resource: Dicts
    name: str
    namespace: str | None = None

    @property
    def text(self) -> str:
        """Its name as kubectl prints it, with its namespace."""
        group = f".{self.resource.group}" if self.resource.group else ""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.resource.kind.lower()}{group}/{self.name}{where}"


def named_objects() -> Iterator[InstalledObject]:
    """The objects of ``deploy/`` and its options without namespaces and definitions, the last one first."""
    folder = deploy_folder()
    manifests = install_manifests()
    for path in sorted((folder / "options").rglob("*.yaml")):
        if path.name == "kustomization.yaml":
            continue
        manifests += read_manifests(path)
    for each in reversed(manifests):
        if each["kind"] not in {"Namespace", "CustomResourceDefinition"}:
            metadata = each["metadata"]
            yield InstalledObject(resource_for(each), metadata["name"], metadata.get("namespace"))


async def delete_object(client: Client, found: InstalledObject, *, dry: bool) -> Done | None:
    """Deletes an object if it exists; ``None`` if it does not, or if it is being deleted already."""
    try:
        item = await client.get(found.resource, found.name, found.namespace)
        if item["metadata"].get("deletionTimestamp") or _is_nvidias(found, item):
            return None
        if not dry:
            await client.delete(found.resource, found.name, found.namespace, propagation="Background")
    except NotFound:
        return None
    return Done(found.text, "deleted")


def _is_nvidias(found: InstalledObject, item: Mapping[str, Any]) -> bool:
    """True for a DeviceClass of NVIDIA's own driver, whose name an installation can take."""
    return found.resource.kind == "DeviceClass" and not is_made_class(item)


async def delete_objects(client: Client, *, drivers_stay: bool, own: bool, dry: bool) -> AsyncIterator[Result]:
    """Deletes all objects outside of namespaces that go as a whole, and NVIDIA's objects that Tessera made.

    Args:
        client: the API server.
        drivers_stay: true if driver pods stay, which need their account and its rights.
        own: false to leave the objects of the manifests to whoever else deletes them (Helm).
        dry: change nothing.
    """
    if own:
        async for each in _listed(client):
            if drivers_stay and each.name == DRIVER_APP:
                continue
            if done := await delete_object(client, each, dry=dry):
                yield done
        async for result in _delete_labelled(client, system_stays=drivers_stay, dry=dry):
            yield result
    async for resource, metadata in driver_objects(client):
        if done := await delete_object(client, InstalledObject(resource, metadata["name"]), dry=dry):
            yield done
    for item in await list_objects(client, INSTASLICES.as_dicts()):
        metadata = item["metadata"]
        found = InstalledObject(INSTASLICES.as_dicts(), metadata["name"], metadata["namespace"])
        if done := await delete_object(client, found, dry=dry):
            yield done
    if not drivers_stay:
        runtime = await get_object(client, RUNTIME_CLASSES.as_dicts(), "nvidia", None)
        if (
            runtime is not None
            and _is_made(runtime)
            and (done := await delete_object(client, InstalledObject(RUNTIME_CLASSES.as_dicts(), "nvidia"), dry=dry))
        ):
            yield done


async def _listed(client: Client) -> AsyncIterator[InstalledObject]:
    for each in named_objects():
        yield each
    for version, kind in _ROLES:
        resource = resource_for({"apiVersion": version, "kind": kind, "metadata": {"namespace": ""}})
        for item in (await client.list(resource, field_selector=f"metadata.name={CONFIG_ROLE}")).items:
            yield InstalledObject(resource, CONFIG_ROLE, item["metadata"]["namespace"])


async def _delete_labelled(client: Client, *, system_stays: bool, dry: bool) -> AsyncIterator[Result]:
    """Deletes the objects whose names depend on options; names those that bear Tessera's label and are of others."""
    named = {(each.resource.kind, each.name, each.namespace) for each in named_objects()}
    for version, kind in _LABELLED:
        resource = resource_for({"apiVersion": version, "kind": kind, "metadata": {"namespace": ""}})
        try:
            items = (await client.list(resource, label_selector=_LABEL)).items
        except NotFound:  # the server does not know the kind
            continue
        for item in items:
            name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
            found = InstalledObject(resource, name, namespace)
            if (kind, name, namespace) in named:
                continue
            if has_installed(item, FIELD_MANAGER):
                if done := await _delete_installed(client, found, item, dry=dry):
                    yield done
            elif not _is_made(item) and (system_stays or namespace != SYSTEM_NAMESPACE):
                command = f"kubectl delete {kind.lower()} {name} -n {namespace}"
                yield Done(
                    found.text, "kept", (f"it has Tessera's label, but others made it; to remove it: {command}",)
                )


async def _delete_installed(client: Client, found: InstalledObject, item: dict[str, Any], *, dry: bool) -> Done | None:
    if found.resource.kind != CONFIGMAPS.kind or not has_applied(item, FIELD_MANAGER):
        return await delete_object(client, found, dry=dry)
    match await withdraw_file(client, item, FIELD_MANAGER, dry=dry):
        case "withdrawn":
            return Done(found.text, "kept", ("Tessera's fields were removed; it stays since others wrote to it",))
        case "immutable":
            command = f"kubectl delete configmap {found.name} -n {found.namespace}"
            return Done(found.text, "kept", (f"others made it immutable; to remove it: {command}",))
    return Done(found.text, "deleted")


async def delete_made_objects(client: Client, *, dry: bool) -> AsyncIterator[Result]:
    """Deletes what Tessera's processes made in their namespace, where the namespace itself stays."""
    certificate = InstalledObject(SECRETS.as_dicts(), _CERTIFICATE, SYSTEM_NAMESPACE)
    if done := await delete_object(client, certificate, dry=dry):
        yield done
    for resource in _MADE:
        dicts = resource.as_dicts()
        for item in (await client.list(dicts, SYSTEM_NAMESPACE)).items:
            metadata = item["metadata"]
            labels = metadata.get("labels") or {}
            if (
                not _is_made(item)
                or labels.get("app.kubernetes.io/name") == DRIVER_APP
                or metadata.get("ownerReferences")
            ):
                continue
            if done := await delete_object(client, InstalledObject(dicts, metadata["name"], SYSTEM_NAMESPACE), dry=dry):
                yield done


def _is_made(item: Mapping[str, Any]) -> bool:
    """True if a process of Tessera made an object, and no other client changed it."""
    owners = {str(each.get("manager", "")) for each in item["metadata"].get("managedFields") or ()}
    ours = any(each.startswith(OURS) for each in owners)
    return ours and all(each.startswith((OURS, "kube-")) for each in owners)


async def delete_namespaces(client: Client, *, drivers_stay: bool, own: bool, dry: bool) -> AsyncIterator[Result]:
    """Deletes Tessera's namespaces; see :func:`delete_objects` for the arguments."""
    if drivers_stay or not own:
        async for each in delete_made_objects(client, dry=dry):
            yield each
    elif await get_object(client, NAMESPACES.as_dicts(), SYSTEM_NAMESPACE, None) is not None:
        others = [each async for each in _of_users(client, SYSTEM_NAMESPACE, (*_OF_USERS, SECRETS))]
        notes = tuple(f"with {each}, which Tessera did not make" for each in others)
        if done := await delete_object(client, InstalledObject(NAMESPACES.as_dicts(), SYSTEM_NAMESPACE), dry=dry):
            yield Done(done.name, done.result, notes)
    found = await get_object(client, NAMESPACES.as_dicts(), INSTASLICE_NAMESPACE, None)
    if found is None or (found["metadata"].get("labels") or {}).get(PART_OF) != "tessera":
        return
    if found["metadata"].get("deletionTimestamp"):  # the right to list there may be gone with its Role
        return
    notes = tuple([each async for each in _of_users(client, INSTASLICE_NAMESPACE)])
    if notes:
        yield Done(f"namespace/{INSTASLICE_NAMESPACE}", "kept", (f"it has {', '.join(notes[:5])}",))
    elif done := await delete_object(client, InstalledObject(NAMESPACES.as_dicts(), INSTASLICE_NAMESPACE), dry=dry):
        yield done


async def _of_users(client: Client, namespace: str, kinds: Sequence[Resource[Any]] = _OF_USERS) -> AsyncIterator[str]:
    """Names of things in a namespace that Tessera did not make."""
    named = {(each.resource.kind, each.name) for each in named_objects() if each.namespace == namespace}
    for resource in kinds:
        for item in (await client.list(resource.as_dicts(), namespace)).items:
            metadata = item["metadata"]
            name = metadata["name"]
            labelled = (metadata.get("labels") or {}).get(PART_OF) == "tessera"
            ours = _is_made(item) or (
                has_installed(item, FIELD_MANAGER) if resource.kind == CONFIGMAPS.kind else labelled
            )
            if not ours and name not in _EVERYWHERE and (resource.kind, name) not in named:
                yield f"{resource.kind} {name}"


async def delete_definitions(client: Client, *, dry: bool) -> AsyncIterator[Result]:
    """Deletes the definitions of kinds; NVIDIA's only if they are Tessera's and nobody else has objects of them."""
    for each in install_manifests():
        if each["kind"] == CRDS.kind and each["spec"]["group"] != CLUSTER_POLICIES.group:
            own = InstalledObject(CRDS.as_dicts(), each["metadata"]["name"])
            if done := await delete_object(client, own, dry=dry):
                yield done
    for resource in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
        name = f"{resource.plural}.{resource.group}"
        found = await get_object(client, CRDS.as_dicts(), name, None)
        if found is None or (found["metadata"].get("labels") or {}).get(PART_OF) != "tessera":
            continue
        ours = {metadata["name"] async for kind, metadata in driver_objects(client) if kind is resource}
        others = [each["metadata"]["name"] for each in await list_objects(client, resource)]
        others = [each for each in others if not (dry and each in ours)]
        if others:
            yield Done(f"customresourcedefinition/{name}", "kept", (f"others made {', '.join(sorted(others)[:5])}",))
        elif done := await delete_object(client, InstalledObject(CRDS.as_dicts(), name), dry=dry):
            yield done
