"""The owners of an installation, and of its objects and fields.

An installation may belong to a Helm release, or to the operator of the OLM bundle. Each of them writes all objects
again, by its own settings. So a command that changes or removes the installation leaves it to its owner, and names the
command that does the same.

Fields that kubectl applied count as those of an earlier installation: server-side apply removes a field only if nobody
else set it. So such fields become ours before an object is applied. Definitions and objects of NVIDIA's kinds that
others made are left alone.

Rules for ConfigMaps in tessera-system with a file that an option of ``tessera install`` names:

- Users write such ConfigMaps too, so a label does not say whose they are: only the fields that the installer applied
  are its own (Kubernetes API, ``ObjectMeta.managedFields``).
- Without the option, the installer withdraws its fields. It deletes the ConfigMap only if nothing of others is left.
- From an immutable ConfigMap the API server removes no field, and others made it immutable: it stays as it is.
- Fields that kubectl applied do not become the installer's, since a user may have written them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import NODE_GROUPS_MAP, REPAIRS_MAP, SYSTEM_NAMESPACE
from tessera.cli.install.manifests import AGENT, CONFIG_MAP, Manifest
from tessera.kube.client import Client
from tessera.kube.errors import Conflict, Forbidden, NotFound
from tessera.kube.resources import CONFIGMAPS, DAEMONSETS, DEPLOYMENTS, Resource
from tessera.nesting import decode_json

#: Managers and operations of ``kubectl apply`` and of ``kubectl apply --server-side``.
_KUBECTL = frozenset({("kubectl-client-side-apply", "Update"), ("kubectl", "Apply")})

#: The annotation in which ``kubectl apply`` records its manifest; removed when the fields become ours.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

Entry = Mapping[str, Any]


def take_over_fields(entries: Sequence[Entry], manager: str, api_version: str) -> list[Entry] | None:
    """The owners after the fields that kubectl applied have become ours; ``None`` if kubectl applied nothing.

    Args:
        entries: the present owners, ``metadata.managedFields``.
        manager: our name.
        api_version: the version in which the fields are named; entries of another version stay.
    """
    kubectl_entries = [each for each in entries if _is_of(each, _KUBECTL, api_version)]
    if not kubectl_entries:
        return None
    our_entries = [each for each in entries if _is_of(each, frozenset({(manager, "Apply")}), api_version)]
    fields: Mapping[str, Any] = {}
    for each in (*our_entries, *kubectl_entries):
        fields = _union(fields, each.get("fieldsV1", {}))
    merged = {**(our_entries or kubectl_entries)[0], "manager": manager, "operation": "Apply", "fieldsV1": fields}
    return [*(each for each in entries if each not in our_entries and each not in kubectl_entries), merged]


def _is_of(entry: Entry, owners: frozenset[tuple[str, str]], api_version: str) -> bool:
    known = (entry.get("manager", ""), entry.get("operation", ""))
    return known in owners and entry.get("apiVersion") == api_version and not entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _union(one.get(key, {}), other.get(key, {})) for key in {**one, **other}}


_GROUP = "nvidia.com"
#: The label that says that an object is a part of Tessera.
PART_OF = ("app.kubernetes.io/part-of", "tessera")
_DEFINITION = "CustomResourceDefinition"


def is_left_alone(manifest: Mapping[str, Any], before: Mapping[str, Any] | None, manager: str, *, over: bool) -> bool:
    """Returns True if another owner made the object and it must not be changed.

    Args:
        manifest: the object to apply.
        before: the object in the cluster; None if there is none.
        manager: Tessera's name as field manager.
        over: True if the user takes over objects of others.
    """
    if before is None or is_ours(before, manager):
        return False
    if manifest["kind"] == _DEFINITION:
        return bool(manifest["spec"]["group"] == _GROUP)
    return bool(manifest["apiVersion"].startswith(f"{_GROUP}/")) and not over


def is_ours(obj: Mapping[str, Any], manager: str) -> bool:
    """Returns True if Tessera made an object: it has Tessera's label, or Tessera applied some of its fields."""
    metadata = obj.get("metadata") or {}
    key, value = PART_OF
    return (metadata.get("labels") or {}).get(key) == value or has_applied(obj, manager)


def is_made_class(item: Mapping[str, Any]) -> bool:
    """Returns True for a DeviceClass that an installation made.

    NVIDIA's own driver has classes of the same names. Its chart may have taken one over, with all of its fields.
    """
    metadata = item["metadata"]
    key, value = PART_OF
    by_helm = "meta.helm.sh/release-name" in (metadata.get("annotations") or {})
    return (metadata.get("labels") or {}).get(key) == value and not by_helm


def has_installed(obj: Mapping[str, Any], manager: str) -> bool:
    """Returns True if an installation gave an object Tessera's label, by its own manager or by ``kubectl apply``.

    Anybody can set the label, so the label alone does not say whose an object is.
    """
    appliers = {(manager, "Apply"), *_KUBECTL}
    return any(
        (each.get("manager"), each.get("operation")) in appliers
        and f"f:{PART_OF[0]}" in each.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})
        for each in (obj.get("metadata") or {}).get("managedFields") or ()
    )


def has_applied(obj: Mapping[str, Any], manager: str) -> bool:
    """Returns True if the manager applied some of an object's fields."""
    owners = (obj.get("metadata") or {}).get("managedFields") or ()
    return any(each.get("manager") == manager and each.get("operation") == "Apply" for each in owners)


APPLY = "application/apply-patch+yaml"

#: The names of these ConfigMaps.
FILES = (CONFIG_MAP, NODE_GROUPS_MAP, REPAIRS_MAP)


def is_file(manifest: Manifest) -> bool:
    """Returns True for a ConfigMap with the file of an option."""
    return manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] in FILES


async def withdraw_file(client: Client, found: dict[str, Any], manager: str, *, dry: bool) -> str:
    """Removes the installer's fields from a ConfigMap; deletes it if nothing of others is left.

    Starts again if another client writes the ConfigMap meanwhile.

    Args:
        client: the cluster.
        found: the ConfigMap.
        manager: the installer's name as field manager.
        dry: write nothing.

    Returns:
        ``deleted``; ``withdrawn`` if fields of others are left; ``left`` if the installer has no field in it;
        ``immutable`` if it stays as it is.

    Raises:
        ApiError: the server refused.
    """
    resource, name, namespace = CONFIGMAPS.as_dicts(), found["metadata"]["name"], found["metadata"]["namespace"]
    while has_applied(found, manager):
        if found.get("immutable"):
            return "immutable"
        version = found["metadata"]["resourceVersion"]
        try:
            others = _is_of_others(await _withdraw_fields(client, found, manager, dry=True))
            if others and not dry:
                await _withdraw_fields(client, found, manager, dry=False)
            elif not dry:
                await client.delete(resource, name, namespace, resource_version=version)
        except NotFound:
            return "deleted"
        except Conflict:
            try:
                found = await client.get(resource, name, namespace)
            except NotFound:
                return "deleted"
        else:
            return "withdrawn" if others else "deleted"
    return "left"


async def _withdraw_fields(client: Client, found: Mapping[str, Any], manager: str, *, dry: bool) -> dict[str, Any]:
    """Applies the ConfigMap without a field: the server removes those that nobody else set."""
    metadata = {key: found["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    answer = await client.request(
        "PATCH",
        CONFIGMAPS.path(metadata["namespace"], metadata["name"]),
        query=[("fieldManager", manager), ("force", "true"), *([("dryRun", "All")] if dry else [])],
        body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata},
        content_type=APPLY,
    )
    made: dict[str, Any] = decode_json(answer.body, dict[str, Any])
    return made


def _is_of_others(item: Mapping[str, Any]) -> bool:
    """Returns True if a ConfigMap holds more than Tessera's label and kubectl's record of a manifest."""
    metadata = item["metadata"]
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if (key, value) != PART_OF}
    annotations = (metadata.get("annotations") or {}).keys() - {LAST_APPLIED}
    held = (metadata.get(key) for key in ("finalizers", "ownerReferences"))
    return any((item.get("data"), item.get("binaryData"), labels, annotations, *held))


async def take_over(client: Client, resource: Resource[dict[str, Any]], item: dict[str, Any], manager: str) -> None:
    """Makes the fields that kubectl applied ours; tries again if another client writes the object meanwhile."""
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    while True:
        metadata = item["metadata"]
        owners = take_over_fields(metadata.get("managedFields", ()), manager, item["apiVersion"])
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


def content_of(item: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The part of an object that a user sets: without its status, and without metadata of the server and of kubectl."""
    if item is None:
        return {}
    annotations = {
        key: value for key, value in (item["metadata"].get("annotations") or {}).items() if key != LAST_APPLIED
    }
    metadata = {"labels": item["metadata"].get("labels"), "annotations": annotations}
    return {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}


async def list_objects(
    client: Client, resource: Resource[dict[str, Any]], namespace: str | None = None, name: str = ""
) -> Sequence[dict[str, Any]]:
    """The objects of a kind, or those of a name; none where the server does not know the kind."""
    try:
        return (await client.list(resource, namespace, field_selector=f"metadata.name={name}" if name else None)).items
    except NotFound:
        return ()


async def get_object(
    client: Client, resource: Resource[dict[str, Any]], name: str, namespace: str | None
) -> dict[str, Any] | None:
    """An object, or None."""
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        return None


#: The Deployment of the OLM bundle's operator, by its label.
_OPERATOR = "app.kubernetes.io/name=tessera-operator"
_BINDINGS: Resource[dict[str, Any]] = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict[str, Any]
)
_RELEASE = "meta.helm.sh/release-name"
_NAMESPACE = "meta.helm.sh/release-namespace"


class HelmRelease(msgspec.Struct, frozen=True):
    """A release of the chart."""

    name: str
    namespace: str


class BundleOperator(msgspec.Struct, frozen=True):
    """The operator of the OLM bundle."""

    namespace: str


Owner = HelmRelease | BundleOperator


async def find_owner(client: Client) -> Owner | None:
    """The owner of the installation; None if it is free, or if the user may not see it.

    A missing right is named by the request that needs it.
    """
    try:
        agent = await get_object(client, DAEMONSETS.as_dicts(), AGENT, SYSTEM_NAMESPACE)
        annotations = (agent or {}).get("metadata", {}).get("annotations") or {}
        if release := annotations.get(_RELEASE):
            return HelmRelease(release, annotations.get(_NAMESPACE, ""))
        found = (await client.list(DEPLOYMENTS.as_dicts(), label_selector=_OPERATOR)).items
        bound = await _bound_accounts(client) if found else frozenset()
        for each in found:
            namespace = each["metadata"]["namespace"]
            # Whoever may create a Deployment in some namespace can give it this label, but not these rights.
            if (namespace, each["spec"]["template"]["spec"].get("serviceAccountName", "default")) in bound:
                return BundleOperator(namespace)
    except Forbidden:
        pass
    return None


async def _bound_accounts(client: Client) -> frozenset[tuple[str, str]]:
    """Namespace and name of every account that has rights in the whole cluster."""
    subjects: list[dict[str, Any]] = []
    for binding in (await client.list(_BINDINGS)).items:
        subjects += binding.get("subjects") or ()
    return frozenset(
        (each.get("namespace", ""), each.get("name", "")) for each in subjects if each.get("kind") == "ServiceAccount"
    )


def refuse_install(owner: Owner) -> str:
    """The text for a user who would install over another owner's installation."""
    if isinstance(owner, HelmRelease):
        return (
            f'error: Helm installed Tessera as release "{owner.name}"; nothing was changed. To change it: helm upgrade'
            f" {owner.name} CHART -n {owner.namespace} --reset-then-reuse-values. To leave Helm: helm uninstall"
            f" {owner.name} -n {owner.namespace}, then run this command again"
        )
    return (
        f"error: the operator in namespace {owner.namespace} installs Tessera; nothing was changed. To change it, write"
        f' the options into the key "options" of ConfigMap {owner.namespace}/tessera-install; to install without it,'
        " first delete its Subscription and its ClusterServiceVersion"
    )


def refuse_uninstall(owner: Owner) -> str:
    """The text for a user who would remove another owner's installation."""
    if isinstance(owner, HelmRelease):
        return (
            f'error: Helm installed Tessera as release "{owner.name}"; run: helm uninstall {owner.name}'
            f" -n {owner.namespace}"
        )
    return (
        f"error: the operator in namespace {owner.namespace} would install Tessera again; first delete its Subscription"
        " and its ClusterServiceVersion, then run this command again"
    )
