"""The parts of a Node that decide which pods may run on it (core/v1)."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

import sys

import msgspec

from tessera.kube.resources.meta import ObjectMeta, Wire
from tessera.kube.resources.pods import Condition


class Taint(Wire, frozen=True, kw_only=True):
    """Excludes pods that do not tolerate it; effects: NoSchedule, PreferNoSchedule, NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Wire, frozen=True, kw_only=True):
    """``kubectl cordon`` sets ``unschedulable``."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeAddress(Wire, frozen=True, kw_only=True):
    """Types: Hostname, InternalIP, ExternalIP, InternalDNS, ExternalDNS."""

    type: str = ""
    address: str = ""


class NodeSystemInfo(Wire, frozen=True, kw_only=True):
    """Facts about the machine that kubelet reports.

    ``boot_id`` changes with every boot, after which all state on the hardware is gone. ``architecture`` is Go's word
    for it (amd64, arm64), which registries use too. ``os_image`` is ``PRETTY_NAME`` of the node's os-release.
    """

    boot_id: str = msgspec.field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    architecture: str = ""


class ContainerImage(Wire, frozen=True, kw_only=True):
    """An image on a node: its names, by tag and by digest, and its size."""

    names: tuple[str, ...] | None = None
    size_bytes: int = 0

    def __post_init__(self) -> None:
        # many nodes have the same images
        msgspec.structs.force_setattr(self, "names", tuple(map(sys.intern, self.names or ())))


class NodeStatus(Wire, frozen=True, kw_only=True, eq=False):
    """Quantities by resource name are texts; see :mod:`tessera.kube.quantity`.

    Images are not compared: a pull is no change for those who look at nodes.
    """

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    images: tuple[ContainerImage, ...] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeStatus):
            return NotImplemented
        named = [name for name in self.__struct_fields__ if name != "images"]
        return all(getattr(self, name) == getattr(other, name) for name in named)

    __hash__ = None  # type: ignore[assignment]

    def condition(self, kind: str) -> Condition | None:
        """Returns the condition of a type; None if the node has none."""
        return next((each for each in self.conditions if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        """True if kubelet reports the node as ready. A node without the condition is not ready, as for the scheduler.

        Kubernetes sets the condition to ``Unknown`` when kubelet no longer renews the node's lease.
        """
        return not self.not_ready_reason

    @property
    def not_ready_reason(self) -> str:
        """Kubernetes' words for why the node is not ready; empty if it is."""
        ready = self.condition("Ready")
        if ready is None:
            return "it has no Ready condition"
        return "" if ready.status == "True" else ready.message or ready.reason or "kubelet is not ready"


class Node(Wire, frozen=True, kw_only=True):
    """A node, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeReference(Wire, frozen=True, kw_only=True):
    """The node that a machine became."""

    name: str = ""


class MachineSpec(Wire, frozen=True, kw_only=True):
    """``provider_id`` names the virtual machine, as the Node's spec does; a NodeClaim has it in its status."""

    provider_id: str = msgspec.field(name="providerID", default="")


class MachineConditions(Wire, frozen=True, kw_only=True):
    """Conditions in the form of a newer version, next to those of the older one."""

    conditions: tuple[Condition, ...] = ()


class MachineStatus(Wire, frozen=True, kw_only=True):
    """Progress of a machine: a Machine names its node by ``node_ref``, a NodeClaim by ``node_name``."""

    node_ref: NodeReference | None = None
    node_name: str = ""
    provider_id: str = msgspec.field(name="providerID", default="")
    conditions: tuple[Condition, ...] = ()
    v1beta2: MachineConditions | None = None


class Machine(Wire, frozen=True, kw_only=True):
    """One of the three, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MachineSpec = MachineSpec()
    status: MachineStatus = MachineStatus()
