"""What a round of decisions over all nodes is made from, and what comes of it. Values only."""

from collections.abc import Callable, Mapping

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
    """A DaemonSet of ours that is not being deleted."""

    set: DriverSet
    uid: str


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known.

    Attributes:
        nodes: by name.
        pods: by name of the node.
        governance: which policy governs which node.
        sets: DaemonSets by the set's id.
        answers: what registries said.
        situation: what else decides for a pool under a policy, ``foreign`` and ``unpullable`` apart.
        unpullable: images that kubelets could not pull lately, with kubelet's words.
        failed: sets that failed in the rollout, with the cause.
        notes: what the rollout says of nodes, by name.
        user: a pod that uses a node's cards and can be asked to go, ``namespace/name``; empty for none.
        toolkit: whether its DaemonSet is there.
        now: seconds since 1970.
    """

    nodes: Mapping[str, DriverNodeFacts]
    pods: Mapping[str, NodePods] = {}
    selection: PolicySelection = PolicySelection()
    sets: Mapping[str, ExistingSet] = {}
    answers: Callable[[ImageQuery], Resolution | None] = lambda _query: None
    situation: Callable[[DriverPolicy, PoolKey], StrategyInputs] = lambda _policy, _pool: StrategyInputs()
    unpullable: Mapping[str, str] = {}
    failed_sets: Mapping[str, str] = {}
    rollout_notes: Mapping[str, str] = {}
    user: Callable[[str], str] = lambda _node: ""
    has_toolkit: bool = False
    now: float = 0.0


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a round.

    Attributes:
        instructions: what is to be written.
        wanted: what the rollout should make of each node, by name.
        ask: what must be asked of registries.
        build: pools for which an image should be built, with the policy that asks for it.
        statuses: what each managed node is told.
        used: the policies that govern a node, by ``kind/name``.
    """

    instructions: tuple[Instruction, ...] = ()
    wanted: Mapping[str, WantedDriver] = {}
    lookups: tuple[ImageQuery, ...] = ()
    builds: tuple[tuple[DriverPolicy, PoolKey], ...] = ()
    statuses: Mapping[str, DriverStatus | None] = {}
    policies: Mapping[str, DriverPolicy] = {}
