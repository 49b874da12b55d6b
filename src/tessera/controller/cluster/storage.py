"""Claims, volumes, storage classes, CSI nodes and local models of the cluster, by name."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tessera.kube.resources import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from tessera.kube.resources.meta import key_of

#: Annotation of a claim that is bound permanently to its volume.
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


class NodeModels(msgspec.Struct, frozen=True):
    """The models that KServe has brought to a node: names of LocalModelCaches, ``namespace/name`` of others."""

    node: str
    models: frozenset[str]


#: The objects that decide where a pod's volumes can be.
StorageObject = PersistentVolume | PersistentVolumeClaim | StorageClass | CsiNode | NodeModels


@dataclass(slots=True)
class Storage:
    """Claims, volumes, classes and drivers as they are, by name; claims by ``namespace/name``.

    Attributes:
        free: volumes without a claim that are reserved for no claim, by class.
        reserved: by claim, the volume that names it.
    """

    claims: dict[str, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    csi_nodes: dict[str, CsiNode] = field(default_factory=dict)
    models: dict[str, frozenset[str]] = field(default_factory=dict)
    free: dict[str, dict[str, PersistentVolume]] = field(default_factory=dict)
    reserved: dict[str, PersistentVolume] = field(default_factory=dict)

    def put(self, item: StorageObject) -> None:
        """Takes in an object as it is now."""
        match item:
            case PersistentVolume():
                self.put_volume(item)
            case NodeModels():
                self.models[item.node] = item.models
            case _:
                self._like(item)[key_of(item)] = item

    def drop(self, item: StorageObject) -> None:
        """Forgets a deleted object."""
        match item:
            case PersistentVolume():
                self.drop_volume(item.metadata.name)
            case NodeModels():
                self.models.pop(item.node, None)
            case _:
                self._like(item).pop(key_of(item), None)

    def _like(self, item: PersistentVolumeClaim | StorageClass | CsiNode) -> dict[str, Any]:
        if isinstance(item, PersistentVolumeClaim):
            return self.claims
        return self.classes if isinstance(item, StorageClass) else self.csi_nodes

    def put_volume(self, volume: PersistentVolume) -> None:
        """Takes in a volume as it is now."""
        self.drop_volume(volume.metadata.name)
        self.volumes[volume.metadata.name] = volume
        reference = volume.spec.claim_ref
        if reference is not None:
            self.reserved[f"{reference.namespace}/{reference.name}"] = volume
        elif volume.status.phase == "Available" and volume.metadata.deletion_timestamp is None:
            self.free.setdefault(volume.spec.storage_class_name, {})[volume.metadata.name] = volume

    def drop_volume(self, name: str) -> None:
        """Forgets a deleted volume."""
        volume = self.volumes.pop(name, None)
        if volume is None:
            return
        self.free.get(volume.spec.storage_class_name, {}).pop(name, None)
        reference = volume.spec.claim_ref
        if reference is not None and self.reserved.get(f"{reference.namespace}/{reference.name}") is volume:
            del self.reserved[f"{reference.namespace}/{reference.name}"]

    def bound(self, claim: PersistentVolumeClaim) -> bool:
        """True if a claim is bound permanently to its volume."""
        return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations

    def attached_volume(self, key: str) -> tuple[str, str] | None:
        """Returns driver and identity of the volume that a claim attaches; None if no CSI driver serves it."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name)
        if volume is not None:
            csi = volume.spec.csi
            return (csi.driver, csi.volume_handle) if csi is not None else None
        item = self.classes.get(claim.spec.storage_class_name)
        return (item.provisioner, key) if item is not None else None
