"""What autoscalers make nodes from: Machine of Cluster API and of OpenShift, NodeClaim of Karpenter.

The three agree in what Tessera reads of them: when they were made, which node they became, and their conditions. One
type serves them all; none of them need be on a cluster.
"""

import msgspec

from tessera.kube.meta import ObjectMeta, Wire
from tessera.kube.pods import Condition


class NodeReference(Wire, frozen=True, kw_only=True):
    """The node that a machine became."""

    name: str = ""


class MachineSpec(Wire, frozen=True, kw_only=True):
    """``provider_id`` names the virtual machine, as the Node's spec does; a NodeClaim has it in its status."""

    provider_id: str | None = msgspec.field(name="providerID", default="")


class MachineConditions(Wire, frozen=True, kw_only=True):
    """Conditions in the form of a newer version, next to those of the older one."""

    conditions: tuple[Condition, ...] | None = ()


class MachineStatus(Wire, frozen=True, kw_only=True):
    """How far it is: a Machine names its node by ``node_ref``, a NodeClaim by ``node_name``."""

    node_ref: NodeReference | None = None
    node_name: str | None = ""
    provider_id: str | None = msgspec.field(name="providerID", default="")
    conditions: tuple[Condition, ...] | None = ()
    v1beta2: MachineConditions | None = None


class Machine(Wire, frozen=True, kw_only=True):
    """One of the three, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MachineSpec = MachineSpec()
    status: MachineStatus = MachineStatus()
