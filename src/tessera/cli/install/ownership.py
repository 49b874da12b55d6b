"""Who set the fields of an object: what kubectl applied becomes what the installer applied.

Server-side apply takes a field away only if nobody else set it. The manifests of an installation may have been applied
by kubectl (``tessera install -o yaml | kubectl apply -f -``); what stands in them would otherwise stay for good, and
differ from what is installed. kubectl itself does the same when a user turns to ``--server-side``. Fields that were
set in any other way (``kubectl edit``, a controller) stay their owners'.

How fields are written down: Kubernetes API, ``ObjectMeta.managedFields``, ``FieldsV1``, in which a set is a tree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
