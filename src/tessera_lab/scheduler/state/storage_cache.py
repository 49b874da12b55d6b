"""Volumes, claims, storage classes and CSI nodes as the scheduler remembers them: decoded JSON by name. No I/O."""

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

#: Provisioner of classes whose volumes somebody makes by hand.
NO_PROVISIONER = "kubernetes.io/no-provisioner"
#: Annotation of a claim: the node that its volume is being made for.
SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: Annotation of a claim whose binding is complete.
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


class StorageCache:
    """Cached volumes, claims, storage classes and CSI nodes.

    Attributes:
        claims: PersistentVolumeClaims by ``namespace/name``.
        volumes: PersistentVolumes.
        classes: StorageClasses.
        csi_nodes: CSINodes.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Json] = {}
        self.volumes: dict[str, Json] = {}
        self.classes: dict[str, Json] = {}
        self.csi_nodes: dict[str, Json] = {}

    def is_bound(self, claim: Json) -> bool:
        """True if a claim has its volume for good."""
        return bool(claim["spec"].get("volumeName")) and BIND_COMPLETED in annotations(claim)

    def waits_for_consumer(self, claim: Json) -> bool:
        """True if a claim is bound only once a pod that uses it has a node."""
        found = self.classes.get(claim["spec"].get("storageClassName") or "")
        return found is not None and found.get("volumeBindingMode") == "WaitForFirstConsumer"


def annotations(item: Json) -> Mapping[str, str]:
    """An object's annotations."""
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


def claims_of(namespace: str, name: str, spec: Json) -> Iterator[tuple[str, bool]]:
    """Keys of the claims that a pod uses, and whether they are made for it (generic ephemeral volumes)."""
    for volume in spec.get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            yield f"{namespace}/{volume['persistentVolumeClaim']['claimName']}", False
        elif volume.get("ephemeral"):
            yield f"{namespace}/{name}-{volume['name']}", True
