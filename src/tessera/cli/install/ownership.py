"""The owners of the objects and fields of an installation.

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

from tessera.api.names import NODE_GROUPS_MAP, REPAIRS_MAP
from tessera.cli.install.manifests import CONFIG_MAP, Manifest
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import CONFIGMAPS
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
