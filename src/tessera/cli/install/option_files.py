"""ConfigMaps in tessera-system with a file that an option of ``tessera install`` names.

Rules:

- Users write such ConfigMaps too, so a label does not say whose they are: only the fields that the installer applied
  are its own (Kubernetes API, ``ObjectMeta.managedFields``).
- Without the option, the installer withdraws its fields. It deletes the ConfigMap only if nothing of others is left.
- From an immutable ConfigMap the API server removes no field, and others made it immutable: it stays as it is.
- Fields that kubectl applied do not become the installer's, since a user may have written them.
"""

from collections.abc import Mapping
from typing import Any

from tessera.api.nodes.node_groups import NODE_GROUPS_MAP
from tessera.api.nodes.repairs import REPAIRS_MAP
from tessera.cli.install.manifests import CONFIG_MAP, Manifest
from tessera.cli.install.ownership import LAST_APPLIED, PART_OF, has_applied
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import CONFIGMAPS
from tessera.nesting import decode_json

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
