"""Input and output of a planning round: the snapshot of the cluster, and the plan. Values only."""

from collections.abc import Mapping

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DriverStatus
from tessera.driver.driver_sets import DriverSet
from tessera.driver.nodes.node_facts import DriverNodeFacts
from tessera.driver.nodes.pod_facts import NodePods
from tessera.driver.planning.instructions import Instruction
from tessera.driver.planning.strategy import StrategyInputs
from tessera.driver.policies.policy_selection import PolicySelection
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import ImageQuery, Resolution
from tessera.driver.rollout.node_view import WantedDriver


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
        gpu_pods: a pod that uses the node's GPUs and can be evicted, ``namespace/name``, by node name.
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
    gpu_pods: Mapping[str, str] = {}
    has_toolkit: bool = False
    now: float = 0.0


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of :func:`~tessera.driver.planning.cluster_plan.plan_cluster`.

    Attributes:
        instructions: the writes that are due.
        wanted: what the rollout should bring to each node, by name.
        lookups: images to look up in registries.
        builds: pools whose image should be built, each with the policy that asks for it.
        statuses: the status of each managed node; None where the node has none.
        policies: the policies that select at least one node, by ``kind/name``.
    """

    instructions: tuple[Instruction, ...] = ()
    wanted: Mapping[str, WantedDriver] = {}
    lookups: tuple[ImageQuery, ...] = ()
    builds: tuple[tuple[DriverPolicy, PoolKey], ...] = ()
    statuses: Mapping[str, DriverStatus | None] = {}
    policies: Mapping[str, DriverPolicy] = {}
