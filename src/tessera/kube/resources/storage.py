"""The parts of volumes and claims that decide where a pod may run (core/v1, storage.k8s.io/v1)."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

from tessera.kube.resources.meta import LabelSelector, ObjectMeta, ObjectReference, Wire
from tessera.kube.resources.pods import NodeSelector


class CsiVolume(Wire, frozen=True, kw_only=True):
    """A volume that a CSI driver attaches."""

    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(Wire, frozen=True, kw_only=True):
    """The nodes that reach a volume."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Wire, frozen=True, kw_only=True):
    """Spec of a volume; ``claim_ref`` names the claim that has it, or for which it is reserved."""

    capacity: dict[str, str] = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiVolume | None = None


class PersistentVolumeStatus(Wire, frozen=True, kw_only=True):
    """``phase``: Pending, Available, Bound, Released or Failed."""

    phase: str = ""


class PersistentVolume(Wire, frozen=True, kw_only=True):
    """A volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class VolumeAmounts(Wire, frozen=True, kw_only=True):
    """Amounts that a claim requests."""

    requests: dict[str, str] = {}


class PersistentVolumeClaimSpec(Wire, frozen=True, kw_only=True):
    """Spec of a claim; ``volume_name`` names its volume once it has one."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeAmounts = VolumeAmounts()
    volume_name: str = ""
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"


class PersistentVolumeClaimStatus(Wire, frozen=True, kw_only=True):
    """``phase``: Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Wire, frozen=True, kw_only=True):
    """A claim to a volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class TopologyTest(Wire, frozen=True, kw_only=True):
    """A node label and the values that it may have."""

    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(Wire, frozen=True, kw_only=True):
    """All tests must hold."""

    match_label_expressions: tuple[TopologyTest, ...] = ()


class StorageClass(Wire, frozen=True, kw_only=True):
    """The rules by which volumes are made. If there are ``allowed_topologies``, a volume needs one of them."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class CsiAllocatable(Wire, frozen=True, kw_only=True):
    """The number of a driver's volumes that a node can attach; None without a limit."""

    count: int | None = None


class CsiDriver(Wire, frozen=True, kw_only=True):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: CsiAllocatable | None = None


class CsiNodeSpec(Wire, frozen=True, kw_only=True):
    """The drivers of a node."""

    drivers: tuple[CsiDriver, ...] = ()


class CsiNode(Wire, frozen=True, kw_only=True):
    """Facts that CSI drivers report about the node of the same name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CsiNodeSpec = CsiNodeSpec()
