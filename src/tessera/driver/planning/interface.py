"""Input and output of a planning round, as values: the snapshot of the cluster, the plan, and its instructions.

Each instruction to the executor can be lost, or carried out twice, without harm.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.nodes.node_marks import DriverStatus
from tessera.driver.driver_sets import DriverSet, PoolKey
from tessera.driver.images import ImageQuery, Resolution
from tessera.driver.manifests.toolkit import Runtime
from tessera.driver.node_facts import DriverNodeFacts
from tessera.driver.planning.strategy import StrategyInputs
from tessera.driver.pod_facts import NodePods
from tessera.driver.policies import PolicySelection
from tessera.driver.rollout.node_view import DesiredDriver
from tessera.gpu_operator.driver_policy import DriverPolicy


class CreateSet(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a driver set's DaemonSet."""

    set: DriverSet
    policy: DriverPolicy


class DeleteSet(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes the DaemonSet of a set that no node refers to."""

    name: str
    uid: str


class LabelNode(msgspec.Struct, frozen=True, kw_only=True):
    """Names a node's driver set; an empty one removes the label. Holds only for the node as the planner saw it.

    ``owner`` is the node's NVIDIADriver, under upstream's label; an empty one removes that label, None keeps it.
    """

    node: str
    uid: str
    version: str
    set: str
    owner: str | None = None


class WriteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Writes a node's annotation; None removes it."""

    node: str
    uid: str
    status: DriverStatus | None


class WriteCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the condition of a node's driver, as JSON; None removes it."""

    node: str
    uid: str
    condition: dict[str, Any] | None


class CreateValidationPod(msgspec.Struct, frozen=True, kw_only=True):
    """Creates the pod that validates a node's driver; ``nri_plugin`` as in the policy's toolkit settings."""

    node: str
    uid: str
    set: str
    nri_plugin: bool = False


class DeletePod(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes a validation or toolkit pod that belongs to another driver or cannot continue."""

    name: str
    uid: str


class ApplyToolkit(msgspec.Struct, frozen=True, kw_only=True):
    """Applies the container toolkit's DaemonSet for managed nodes."""

    policy: DriverPolicy
    runtime: Runtime


class DeleteToolkit(msgspec.Struct, frozen=True):
    """Deletes the container toolkit's DaemonSet."""


class WritePolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the status of an administrator's object: a merge patch."""

    kind: str
    name: str
    uid: str
    patch: dict[str, Any]


Instruction = (
    CreateSet
    | DeleteSet
    | LabelNode
    | WriteStatus
    | WriteCondition
    | CreateValidationPod
    | DeletePod
    | ApplyToolkit
    | DeleteToolkit
    | WritePolicyStatus
)


def written_node(instruction: Instruction) -> str:
    """The node that an instruction writes; empty if it writes none."""
    return instruction.node if isinstance(instruction, LabelNode | WriteStatus | WriteCondition) else ""


def instruction_key(instruction: Instruction) -> str:
    """The object that has at most one write in flight."""
    match instruction:
        case CreateSet(set=made):
            return f"set/{made.name}"
        case DeleteSet(name=name):
            return f"set/{name}"
        case LabelNode(node=node):
            return f"label/{node}"
        case WriteStatus(node=node):
            return f"status/{node}"
        case WriteCondition(node=node):
            return f"condition/{node}"
        case CreateValidationPod(node=node):
            return f"validation/{node}"
        case DeletePod(uid=uid):
            return f"pod/{uid}"
        case ApplyToolkit() | DeleteToolkit():
            return "toolkit"
        case WritePolicyStatus(kind=kind, name=name):
            return f"policy/{kind}/{name}"


class ExistingSet(msgspec.Struct, frozen=True, kw_only=True):
    """A driver set whose DaemonSet exists and is not being deleted."""

    set: DriverSet
    uid: str


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one planning round depends on.

    Attributes:
        nodes: the nodes' facts by name.
        pods: driver-related pods by node name.
        selection: the policy of each node.
        sets: driver sets with a DaemonSet, by id.
        answers: the registries' latest answers; a query without an entry was never answered.
        strategy_inputs: build state and the like, by policy (``kind/name``) and pool; ``foreign`` and ``unpullable``
            are not filled in here.
        unpullable: images that a kubelet could not pull lately, with kubelet's message.
        failed_sets: driver sets that failed in the rollout, with one cause each.
        rollout_notes: the rollout's note on a node, by name.
        nodes_in_use: names of nodes whose GPUs are used by pods that can be evicted.
        has_toolkit: the container toolkit's DaemonSet exists.
        now: seconds since 1970.
    """

    nodes: Mapping[str, DriverNodeFacts]
    pods: Mapping[str, NodePods] = {}
    selection: PolicySelection = PolicySelection()
    sets: Mapping[str, ExistingSet] = {}
    answers: Mapping[ImageQuery, Resolution] = {}
    strategy_inputs: Mapping[tuple[str, PoolKey], StrategyInputs] = {}
    unpullable: Mapping[str, str] = {}
    failed_sets: Mapping[str, str] = {}
    rollout_notes: Mapping[str, str] = {}
    nodes_in_use: frozenset[str] = frozenset()
    has_toolkit: bool = False
    now: float = 0.0


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of :func:`~tessera.driver.planning.cluster_plan.plan_cluster`.

    Attributes:
        instructions: the writes that are due.
        desired: the driver that the rollout should bring to each node, by name.
        lookups: images to look up in registries.
        builds: pools whose image should be built, each with the policy that asks for it.
        policies: the policies that select at least one node, by ``kind/name``.
    """

    instructions: tuple[Instruction, ...] = ()
    desired: Mapping[str, DesiredDriver] = {}
    lookups: tuple[ImageQuery, ...] = ()
    builds: tuple[tuple[DriverPolicy, PoolKey], ...] = ()
    policies: Mapping[str, DriverPolicy] = {}
