"""Objects of NVIDIA's kinds that somebody else made, and that an installation leaves alone.

A cluster with NVIDIA's operator has its definitions of ClusterPolicy and NVIDIADriver, which know more fields than
Tessera's, and a ClusterPolicy that its chart or its user looks after. To apply Tessera's over them would loosen the one
and change what the operator runs through the other. A user may take the ClusterPolicy over, never the definitions.
"""

from collections.abc import Mapping
from typing import Any

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
