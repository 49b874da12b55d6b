"""Plans the drivers of all nodes: one :class:`ClusterSnapshot` in, one :class:`ClusterPlan` out. No I/O, no state.

Rules:

1. The plan follows from the snapshot alone: nodes, pods, DaemonSets, policy objects, answers of registries and builds.
   A controller that starts again plans the same.
2. One bad node, pool or policy stops no other.
3. A DaemonSet is created for a set that some node should have, and deleted once no node refers to it by its label or
   by its upgrade record.
4. A set that failed in the rollout is not given to fresh nodes while other nodes of the pool serve with another set.
5. No driver comes to a node whose host has one, by its agent's word. What the agent has not said yet is waited for, but
   for a new node of a kind that has none.
6. While the policy selection is frozen (:mod:`tessera.driver.policies`), nothing is written.

The plan says which set each node should have; :mod:`tessera.driver.rollout` replaces drivers that serve.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.api.nodes.node_marks import DriverStatus
from tessera.clock import parse_time_or_zero, rfc3339
from tessera.driver.driver_sets import NAMESPACE, DriverChoice, DriverSet, PoolKey
from tessera.driver.manifests.toolkit import CONTAINERD, CRIO, DOCKER, Runtime
from tessera.driver.node_facts import (
    AgentsWord,
    DriverNodeFacts,
    UpgradeRecord,
    UpgradeState,
    parse_upgrade_record,
    parse_upgrade_state,
    referenced_sets,
)
from tessera.driver.node_status import (
    NodeState,
    add_dates,
    condition_body,
    read_status,
    same_condition,
    status_condition,
)
from tessera.driver.planning.interface import (
    ApplyToolkit,
    ClusterPlan,
    ClusterSnapshot,
    CreateSet,
    CreateValidationPod,
    DeletePod,
    DeleteSet,
    DeleteToolkit,
    Instruction,
    LabelNode,
    WriteCondition,
    WritePolicyStatus,
    WriteStatus,
)
from tessera.driver.planning.node_plan import NodePlan, plan_node, plan_unmanaged, plan_waiting, plan_without_driver
from tessera.driver.planning.strategy import StrategyInputs, StrategyResult, choose_strategy
from tessera.driver.pod_facts import NodePods
from tessera.gpu_operator.assignment import NVIDIA_DRIVERS
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.gpu_operator.policy_objects import OWNER_LABEL
from tessera.gpu_operator.policy_status import make_status_patch

#: Seconds from its registration in which a node is new: its agent may not have started yet.
NEW_NODE = 300.0


def plan_cluster(snapshot: ClusterSnapshot) -> ClusterPlan:
    """Plans one round."""
    if snapshot.selection.frozen:
        return ClusterPlan(instructions=tuple(_policy_status_writes(snapshot, {})))
    return _ClusterPlanner(snapshot).run()


class _ClusterPlanner:
    """Plans one round over all nodes."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._sets = {key: each.set for key, each in snapshot.sets.items()}
        #: Strategy of each policy (``kind/name``) and pool that this round needed so far.
        self._results: dict[tuple[str, PoolKey], StrategyResult] = {}
        self._serving = self._serving_sets()
        #: Pools with a node that has a driver of its own.
        self._pools_with_own_driver = {each.pool for each in snapshot.nodes.values() if each.preinstalled}
        #: Plans of the nodes that need a driver or have one, by name.
        self._plans: dict[str, NodePlan] = {}
        #: DaemonSets to create, by set id; no id of it is in ``_sets``.
        self._needed: dict[str, CreateSet] = {}

    def run(self) -> ClusterPlan:
        """Plans each node by itself, then the writes for all of them together."""
        for name, facts in sorted(self._snapshot.nodes.items()):
            made = self._plan_node(facts)
            if made is not None:
                self._plans[name] = made
        statuses = self._statuses()
        results = self._results.items()
        policies = self._snapshot.selection.policies
        return ClusterPlan(
            instructions=(
                *self._needed.values(),
                *self._labels(),
                *self._validations(),
                *self._status_writes(statuses),
                *self._unneeded_sets(),
                *self._toolkit_instructions(),
                *_policy_status_writes(self._snapshot, statuses),
            ),
            desired={name: each.desired for name, each in self._plans.items()},
            lookups=tuple(dict.fromkeys(query for _, result in results for query in result.lookups)),
            builds=tuple((policies[policy], pool) for (policy, pool), result in results if result.build_wanted),
            policies=policies,
        )

    # Nodes

    def _plan_node(self, facts: DriverNodeFacts) -> NodePlan | None:
        """None for a node that needs no driver and never had one."""
        selection = self._snapshot.selection
        policy = selection.nodes.get(facts.name)
        if not facts.is_gpu or (policy is None and facts.name not in selection.unassigned):
            return plan_unmanaged(self._node_state(facts, policy)) if facts.has_traces else None
        state = self._node_state(facts, policy)
        if facts.opted_out:
            return plan_without_driver(state, f"Tessera leaves its driver alone: {facts.opted_out}.")
        if policy is None:
            return plan_without_driver(state, f"No policy governs it: {selection.unassigned[facts.name]}.")
        result = self._strategy_for(facts, policy)
        waits = self._wait_for_agent(state)
        if waits:
            return plan_waiting(state, policy, waits)
        made = plan_node(state, policy, self._avoid_failed_set(state, result))
        for each in made.needs:
            if each.id not in self._sets:
                self._needed.setdefault(each.id, CreateSet(set=each, policy=policy))
        return made

    def _node_state(self, facts: DriverNodeFacts, policy: DriverPolicy | None) -> NodeState:
        pods = self._snapshot.pods.get(facts.name, NodePods())
        is_managed = policy is not None and not facts.opted_out and not facts.preinstalled and not pods.foreign
        serves = is_managed and pods.validated(facts.driver_set)
        return NodeState(
            facts=facts,
            pods=pods,
            status=read_status(facts.status_annotation),
            record=_unfinished_record(facts),
            rollout_note=self._snapshot.rollout_notes.get(facts.name, ""),
            sets=self._sets,
            toolkit=policy is not None and policy.toolkit.enabled,
            has_gpu_pods=not serves and facts.driver_set != "" and facts.name in self._snapshot.nodes_in_use,
        )

    def _strategy_for(self, facts: DriverNodeFacts, policy: DriverPolicy) -> StrategyResult:
        """The strategy; the same for all nodes of a pool, unless the host has its driver or a fact is missing."""
        pods = self._snapshot.pods.get(facts.name, NodePods())
        foreign = f"pod {pods.foreign} brings it" if pods.foreign else ""
        if foreign or facts.preinstalled or facts.pool is None:
            return choose_strategy(facts, policy, self._snapshot.answers.get, StrategyInputs(foreign=foreign))
        key = (policy.full_name, facts.pool)
        if key not in self._results:
            inputs = self._snapshot.strategy_inputs.get(key, StrategyInputs())
            inputs = msgspec.structs.replace(inputs, unpullable=self._snapshot.unpullable)
            result = choose_strategy(facts, policy, self._snapshot.answers.get, inputs)
            self._results[key] = self._use_existing_set(result, policy, facts.pool)
        return self._results[key]

    def _wait_for_agent(self, state: NodeState) -> str:
        """Why a node gets no driver before its agent has said whether the host has one; empty if it need not wait.

        Only a new node that is like no node with a driver of its own does not wait for the agent's first word: the
        agent would cost it seconds.
        """
        facts, pods = state.facts, state.pods
        ours = facts.driver_set or pods.drivers or (state.status is not None and state.status.set)
        if ours or facts.preinstalled or pods.foreign:
            return ""
        if facts.agent is AgentsWord.WITH_DRIVER:
            return "Waits for its agent, which has a driver open: is it the host's?"
        age = self._snapshot.now - parse_time_or_zero(facts.created) if facts.created else 0.0
        if facts.agent is AgentsWord.NONE_YET and (age > NEW_NODE or facts.pool in self._pools_with_own_driver):
            return "Waits for the first word of its agent: does the host have a driver?"
        return ""

    def _use_existing_set(self, result: StrategyResult, policy: DriverPolicy, pool: PoolKey) -> StrategyResult:
        """Uses an existing driver set while a registry does not answer: an earlier controller got its answer."""
        if result.choice is not None or not result.registry_silent:
            return result
        asked = (policy.settings_digest, policy.source.version)
        fitting = [each for each in self._sets_of(pool) if (each.settings, each.version) == asked]
        if not fitting:
            return result
        known = next((each for each in fitting if each.id in self._serving), fitting[0])
        reason = f"The registry does not answer; the pool has {known.image} already."
        return msgspec.structs.replace(result, choice=DriverChoice(strategy=known.strategy, set=known, reason=reason))

    def _avoid_failed_set(self, state: NodeState, result: StrategyResult) -> StrategyResult:
        """Gives a node where nothing serves no failed set while other nodes of its pool serve with another set."""
        choice, fitting = result.choice, state.fitting_set
        if choice is None or choice.set is None or state.record is not None or state.serves:
            return result
        if fitting is not None and fitting.id == choice.set.id:
            return result
        cause = self._snapshot.failed_sets.get(choice.set.id)
        others = [each for each in self._sets_of(choice.set.pool) if each.id in self._serving - {choice.set.id}]
        if not cause or not others:
            return result
        known = fitting if fitting in others else others[0]
        reason = f"Driver set {choice.set.id} failed on other nodes ({cause}); this one serves there."
        replaced = DriverChoice(strategy=known.strategy, set=known, reason=reason, rejected=choice.rejected)
        return msgspec.structs.replace(result, choice=replaced)

    def _sets_of(self, pool: PoolKey) -> list[DriverSet]:
        return sorted((each for each in self._sets.values() if each.pool == pool), key=lambda each: each.id)

    def _serving_sets(self) -> frozenset[str]:
        """Sets with which at least one node serves."""
        pods = self._snapshot.pods
        return frozenset(
            facts.driver_set
            for name, facts in self._snapshot.nodes.items()
            if name in pods and facts.driver_set and pods[name].validated(facts.driver_set)
        )

    # Writes

    def _labels(self) -> Iterator[Instruction]:
        for name, made in self._plans.items():
            facts, policy = self._snapshot.nodes[name], self._snapshot.selection.nodes.get(name)
            owner = _owner(facts, policy, made.label)
            owned = owner is None or facts.labels.get(OWNER_LABEL, "") == owner
            if made.label != facts.driver_set or not owned:
                yield LabelNode(node=name, uid=facts.uid, version=facts.version, set=made.label, owner=owner)

    def _statuses(self) -> dict[str, DriverStatus]:
        found: dict[str, DriverStatus] = {}
        for name, made in self._plans.items():
            if made.status is not None:
                found[name] = add_dates(
                    made.status, read_status(self._snapshot.nodes[name].status_annotation), self._snapshot.now
                )
        return found

    def _status_writes(self, statuses: Mapping[str, DriverStatus]) -> Iterator[Instruction]:
        for name in self._plans:
            facts, status = self._snapshot.nodes[name], statuses.get(name)
            if status != read_status(facts.status_annotation) or (status is None and facts.status_annotation):
                yield WriteStatus(node=name, uid=facts.uid, status=status)
            if status is None:
                if facts.condition is not None:
                    yield WriteCondition(node=name, uid=facts.uid, condition=None)
                continue
            condition = status_condition(status)
            if not same_condition(facts.condition, condition):
                body = condition_body(condition, facts.condition, self._snapshot.now)
                yield WriteCondition(node=name, uid=facts.uid, condition=body)

    def _validations(self) -> Iterator[Instruction]:
        cluster = self._snapshot.selection.cluster
        nri = cluster is not None and cluster.nri_plugin
        for name, made in self._plans.items():
            facts = self._snapshot.nodes[name]
            proof = self._snapshot.pods.get(name, NodePods()).validation
            if proof is not None:
                outdated = proof.set != facts.driver_set or (made.validate and (proof.succeeded or proof.failed))
                if outdated and not proof.terminating:
                    yield DeletePod(name=proof.name, uid=proof.uid)
            elif made.validate:
                yield CreateValidationPod(node=name, uid=facts.uid, set=facts.driver_set, nri_plugin=nri)
            yield from self._outdated_toolkit(name, facts)
        for name, pods in self._snapshot.pods.items():  # pods of nodes that need no driver any more
            proof = None if name in self._plans else pods.validation
            if proof is not None and not proof.terminating:
                yield DeletePod(name=proof.name, uid=proof.uid)

    def _outdated_toolkit(self, name: str, facts: DriverNodeFacts) -> Iterator[Instruction]:
        """Restarts a toolkit that ran before the driver did; it waits for the driver by itself."""
        pods = self._snapshot.pods.get(name, NodePods())
        driver, toolkit = pods.driver_pod(facts.driver_set), pods.toolkit
        if driver is None or toolkit is None or toolkit.terminating or not toolkit.started:
            return
        if 0.0 < toolkit.started < driver.started:
            yield DeletePod(name=toolkit.name, uid=toolkit.uid)

    def _unneeded_sets(self) -> Iterator[Instruction]:
        """Deletes sets that no node refers to, now or after this plan."""
        kept = set(self._needed)
        for name, facts in self._snapshot.nodes.items():
            kept |= referenced_sets(facts.driver_set, parse_upgrade_record(facts.record_annotation))
            if name in self._plans:
                made = self._plans[name]
                kept |= {made.label, made.desired.set, *(each.id for each in made.needs)}
        for key, each in self._snapshot.sets.items():
            if key not in kept:
                yield DeleteSet(name=each.set.name, uid=each.uid)

    def _toolkit_instructions(self) -> Iterator[Instruction]:
        """Makes one toolkit for the cluster, as upstream does; only the ClusterPolicy configures it.

        If no ClusterPolicy asks for it any more, it is deleted after the last driver, since pods that use a driver may
        still start containers.
        """
        cluster = self._snapshot.selection.cluster
        managed = [self._snapshot.nodes[name] for name, made in self._plans.items() if made.label or made.desired.set]
        if cluster is not None and cluster.toolkit.enabled and managed:
            yield ApplyToolkit(policy=cluster, runtime=_runtime(managed))
        elif self._snapshot.has_toolkit and (not managed if cluster is None else not cluster.toolkit.enabled):
            yield DeleteToolkit()


def _owner(facts: DriverNodeFacts, policy: DriverPolicy | None, label: str) -> str | None:
    """The NVIDIADriver of a node's driver; empty if there is none any more, None if Tessera does not decide that."""
    if not label and facts.driver_set:
        return ""
    return policy.name if policy is not None and policy.kind == NVIDIA_DRIVERS.kind and label else None


def _runtime(nodes: Iterable[DriverNodeFacts]) -> Runtime:
    """CRI-O or Docker if all nodes have it; else containerd, as in gpu-operator."""
    names = {each.runtime for each in nodes}
    return {frozenset({"cri-o"}): CRIO, frozenset({"docker"}): DOCKER}.get(frozenset(names), CONTAINERD)


def _unfinished_record(facts: DriverNodeFacts) -> UpgradeRecord | None:
    """The rollout's record on a node that it has not returned to service."""
    record, state = parse_upgrade_record(facts.record_annotation), parse_upgrade_state(facts.upgrade_state)
    if record is None:
        return None
    return record if state.active or (state is UpgradeState.FAILED and not record.restored) else None


def _policy_status_writes(
    snapshot: ClusterSnapshot, statuses: Mapping[str, DriverStatus | None]
) -> Iterator[Instruction]:
    for report, status in snapshot.selection.policy_statuses(statuses):
        patch = make_status_patch(report.obj, status, namespace=NAMESPACE, now=rfc3339(snapshot.now))
        if patch is not None:
            metadata = report.obj["metadata"]
            yield WritePolicyStatus(kind=report.kind, name=metadata["name"], uid=metadata.get("uid", ""), patch=patch)
