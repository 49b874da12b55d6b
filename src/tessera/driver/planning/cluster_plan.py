"""All nodes and their drivers: one round of decisions, without I/O.

Rules:

1. Everything follows from what is seen: nodes, pods, DaemonSets, the objects of administrators, and what registries and
   builds say. What is remembered besides only saves time; a controller that starts anew decides the same.
2. One bad node, pool or policy stops nobody else.
3. A DaemonSet is made for a set that some node is to have, and deleted once no node refers to it: neither by its label,
   nor by what the rollout would go back to.
4. A set that failed on nodes is not given to fresh ones while others of the pool serve with another.
5. While nothing may be decided (see :mod:`tessera.driver.policies.policy_selection`), nothing is written at all.

It does not know how the rollout replaces drivers that serve (:mod:`tessera.driver.rollout`); it says what is wanted.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.api.driver.assignment import NVIDIA_DRIVERS
from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DriverStatus
from tessera.api.driver.nvidia_driver import OWNER_LABEL
from tessera.api.driver.policy_status import status_patch
from tessera.clock import rfc3339
from tessera.driver.driver_sets import Choice, DriverSet, settings_digest
from tessera.driver.manifests.names import NAMESPACE
from tessera.driver.manifests.runtimes import CONTAINERD, CRIO, DOCKER, Runtime
from tessera.driver.nodes.node_facts import NodeFacts
from tessera.driver.nodes.node_state import Seen
from tessera.driver.nodes.node_status import condition_body, condition_of, dated, read_status, says
from tessera.driver.nodes.pod_facts import NodePods
from tessera.driver.nodes.upgrade_record import Record, State, record_of, references, state_of
from tessera.driver.planning.cluster_snapshot import Decision, World
from tessera.driver.planning.instructions import (
    ApplyToolkit,
    CreateSet,
    DeletePod,
    DeleteSet,
    DeleteToolkit,
    Instruction,
    Label,
    Show,
    Tell,
    TellPolicy,
    Validate,
)
from tessera.driver.planning.node_plan import NodePlan, plan, unmanaged, without
from tessera.driver.planning.strategy import Situation, Verdict, choose
from tessera.driver.pool import PoolKey


def decide(world: World) -> Decision:
    """One round."""
    if world.governance.frozen:
        return Decision(instructions=tuple(_told_policies(world, {})))
    return _Round(world).run()


class _Round:
    """One round over all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sets = {key: each.set for key, each in world.sets.items()}
        self._verdicts: dict[tuple[str, PoolKey], Verdict] = {}
        self._serving = self._served()
        self._plans: dict[str, NodePlan] = {}
        self._needed: dict[str, CreateSet] = {}

    def run(self) -> Decision:
        """Plans each node by itself, and what follows for all together."""
        for name, facts in sorted(self._world.nodes.items()):
            made = self._plan(facts)
            if made is not None:
                self._plans[name] = made
        statuses = self._statuses()
        verdicts = self._verdicts.items()
        policies = self._world.governance.policies
        return Decision(
            instructions=(
                *self._needed.values(),
                *self._labels(),
                *self._validations(),
                *self._tellings(statuses),
                *self._unneeded(),
                *self._toolkit(),
                *_told_policies(self._world, statuses),
            ),
            wanted={name: each.wanted for name, each in self._plans.items()},
            ask=tuple(dict.fromkeys(query for _, verdict in verdicts for query in verdict.ask)),
            build=tuple((policies[policy], pool) for (policy, pool), verdict in verdicts if verdict.build),
            statuses={name: statuses.get(name) for name in self._world.governance.nodes},
            used=policies,
        )

    # Nodes

    def _plan(self, facts: NodeFacts) -> NodePlan | None:
        """None for a node that has nothing to do with drivers, and never had."""
        governance = self._world.governance
        policy = governance.nodes.get(facts.name)
        if not facts.is_gpu or (policy is None and facts.name not in governance.unassigned):
            traces = facts.driver_set or facts.record or facts.told or facts.condition is not None
            return unmanaged(self._seen(facts, policy)) if traces else None
        seen = self._seen(facts, policy)
        if facts.opted_out:
            return without(seen, f"Tessera leaves its driver alone: {facts.opted_out}.")
        if policy is None:
            return without(seen, f"No policy governs it: {governance.unassigned[facts.name]}.")
        verdict = self._verdict(facts, policy)
        made = plan(seen, policy, self._tried(seen, verdict))
        for each in made.needs:
            if each.id not in self._sets:
                self._needed.setdefault(each.id, CreateSet(set=each, policy=policy))
        return made

    def _seen(self, facts: NodeFacts, policy: DriverPolicy | None) -> Seen:
        pods = self._world.pods.get(facts.name, NodePods())
        ours = policy is not None and not facts.opted_out and not facts.preinstalled and not pods.foreign
        goes_on = ours and pods.validated(facts.driver_set)
        return Seen(
            facts=facts,
            pods=pods,
            told=read_status(facts.told),
            record=_unfinished(facts),
            rollout=self._world.notes.get(facts.name, ""),
            sets=self._sets,
            toolkit=policy is not None and policy.toolkit.enabled,
            user="" if goes_on or not facts.driver_set else self._world.user(facts.name),
        )

    def _verdict(self, facts: NodeFacts, policy: DriverPolicy) -> Verdict:
        """The same for all nodes of a pool, unless the host has its driver or a fact is missing."""
        pods = self._world.pods.get(facts.name, NodePods())
        foreign = f"pod {pods.foreign} brings it" if pods.foreign else ""
        if foreign or facts.preinstalled or facts.pool is None:
            return choose(facts, policy, self._world.answers, Situation(foreign=foreign))
        key = (f"{policy.kind}/{policy.name}", facts.pool)
        if key not in self._verdicts:
            situation = self._world.situation(policy, facts.pool)
            situation = msgspec.structs.replace(situation, unpullable=self._world.unpullable)
            verdict = choose(facts, policy, self._world.answers, situation)
            self._verdicts[key] = self._known(verdict, policy, facts.pool)
        return self._verdicts[key]

    def _known(self, verdict: Verdict, policy: DriverPolicy, pool: PoolKey) -> Verdict:
        """While a registry does not answer, what it said to an earlier controller counts: there is a set of it."""
        if verdict.choice is not None or not verdict.silent:
            return verdict
        asked = (settings_digest(policy), policy.source.version)
        fitting = [each for each in self._of(pool) if (each.settings, each.version) == asked]
        if not fitting:
            return verdict
        known = next((each for each in fitting if each.id in self._serving), fitting[0])
        reason = f"The registry does not answer; {known.image} is what the pool has already."
        return msgspec.structs.replace(verdict, choice=Choice(strategy=known.strategy, set=known, reason=reason))

    def _tried(self, seen: Seen, verdict: Verdict) -> Verdict:
        """A node where nothing serves does not get a set that failed, while others of its pool serve with another."""
        choice, fitting = verdict.choice, seen.fitting
        if choice is None or choice.set is None or seen.record is not None or seen.serves:
            return verdict
        if fitting is not None and fitting.id == choice.set.id:
            return verdict
        cause = self._world.failed.get(choice.set.id)
        others = [each for each in self._of(choice.set.pool) if each.id in self._serving - {choice.set.id}]
        if not cause or not others:
            return verdict
        known = fitting if fitting in others else others[0]
        reason = f"Driver set {choice.set.id} failed on other nodes ({cause}); this one serves there."
        replaced = Choice(strategy=known.strategy, set=known, reason=reason, rejected=choice.rejected)
        return msgspec.structs.replace(verdict, choice=replaced)

    def _of(self, pool: PoolKey) -> list[DriverSet]:
        return sorted((each for each in self._sets.values() if each.pool == pool), key=lambda each: each.id)

    def _served(self) -> frozenset[str]:
        """Sets with which some node serves."""
        pods = self._world.pods
        return frozenset(
            facts.driver_set
            for name, facts in self._world.nodes.items()
            if name in pods and facts.driver_set and pods[name].validated(facts.driver_set)
        )

    # What follows

    def _labels(self) -> Iterator[Instruction]:
        for name, made in self._plans.items():
            facts, policy = self._world.nodes[name], self._world.governance.nodes.get(name)
            owner = _owner(facts, policy, made.label)
            owned = owner is None or facts.labels.get(OWNER_LABEL, "") == owner
            if made.label != facts.driver_set or not owned:
                yield Label(node=name, uid=facts.uid, version=facts.version, set=made.label, owner=owner)

    def _statuses(self) -> dict[str, DriverStatus]:
        found: dict[str, DriverStatus] = {}
        for name, made in self._plans.items():
            if made.status is not None:
                found[name] = dated(made.status, read_status(self._world.nodes[name].told), self._world.now)
        return found

    def _tellings(self, statuses: Mapping[str, DriverStatus]) -> Iterator[Instruction]:
        for name in self._plans:
            facts, status = self._world.nodes[name], statuses.get(name)
            if status != read_status(facts.told) or (status is None and facts.told):
                yield Tell(node=name, uid=facts.uid, status=status)
            if status is None:
                if facts.condition is not None:
                    yield Show(node=name, uid=facts.uid, condition=None)
                continue
            wanted = condition_of(status)
            if not says(facts.condition, wanted):
                body = condition_body(wanted, facts.condition, self._world.now)
                yield Show(node=name, uid=facts.uid, condition=body)

    def _validations(self) -> Iterator[Instruction]:
        cluster = self._world.governance.cluster
        nri = cluster is not None and cluster.nri_plugin
        for name, made in self._plans.items():
            facts = self._world.nodes[name]
            proof = self._world.pods.get(name, NodePods()).validation
            if proof is not None:
                outdated = proof.set != facts.driver_set or (made.validate and (proof.succeeded or proof.failed))
                if outdated and not proof.terminating:
                    yield DeletePod(name=proof.name, uid=proof.uid)
            elif made.validate:
                yield Validate(node=name, uid=facts.uid, set=facts.driver_set, nri_plugin=nri)
            yield from self._outdated_toolkit(name, facts)
        for name, pods in self._world.pods.items():  # of nodes that no longer have to do with drivers
            proof = None if name in self._plans else pods.validation
            if proof is not None and not proof.terminating:
                yield DeletePod(name=proof.name, uid=proof.uid)

    def _outdated_toolkit(self, name: str, facts: NodeFacts) -> Iterator[Instruction]:
        """A toolkit that was there before the driver is started anew; it waits for the driver by itself."""
        pods = self._world.pods.get(name, NodePods())
        driver, toolkit = pods.driver(facts.driver_set), pods.toolkit
        if driver is None or toolkit is None or toolkit.terminating or not toolkit.started:
            return
        if 0.0 < toolkit.started < driver.started:
            yield DeletePod(name=toolkit.name, uid=toolkit.uid)

    def _unneeded(self) -> Iterator[Instruction]:
        """Sets to which no node refers, nor will after what was just decided."""
        kept = set(self._needed)
        for name, facts in self._world.nodes.items():
            kept |= references(facts.driver_set, record_of(facts.record))
            if name in self._plans:
                made = self._plans[name]
                kept |= {made.label, made.wanted.set, *(each.id for each in made.needs)}
        for key, each in self._world.sets.items():
            if key not in kept:
                yield DeleteSet(name=each.set.name, uid=each.uid)

    def _toolkit(self) -> Iterator[Instruction]:
        """One toolkit for the cluster: upstream has one, too, and the ClusterPolicy alone speaks of it.

        Where none does any more, it goes after the last driver: pods that still use one may start containers anew.
        """
        cluster = self._world.governance.cluster
        managed = [self._world.nodes[name] for name, made in self._plans.items() if made.label or made.wanted.set]
        if cluster is not None and cluster.toolkit.enabled and managed:
            yield ApplyToolkit(policy=cluster, runtime=_runtime(managed))
        elif self._world.toolkit and (not managed if cluster is None else not cluster.toolkit.enabled):
            yield DeleteToolkit()


def _owner(facts: NodeFacts, policy: DriverPolicy | None, label: str) -> str | None:
    """Which NVIDIADriver a node's driver is of; empty for none any more, None if that is not for Tessera to say."""
    if not label and facts.driver_set:
        return ""
    return policy.name if policy is not None and policy.kind == NVIDIA_DRIVERS.kind and label else None


def _runtime(nodes: Iterable[NodeFacts]) -> Runtime:
    """CRI-O or Docker if all nodes have it; gpu-operator, too, takes containerd where one node does."""
    names = {each.runtime for each in nodes}
    return {frozenset({"cri-o"}): CRIO, frozenset({"docker"}): DOCKER}.get(frozenset(names), CONTAINERD)


def _unfinished(facts: NodeFacts) -> Record | None:
    """The rollout's record of a node that it has not given back."""
    record, state = record_of(facts.record), state_of(facts.upgrade_state)
    if record is None:
        return None
    return record if state.active or (state is State.FAILED and not record.restored) else None


def _told_policies(world: World, statuses: Mapping[str, DriverStatus | None]) -> Iterator[Instruction]:
    for told, verdict in world.governance.verdicts(statuses):
        patch = status_patch(told.obj, verdict, namespace=NAMESPACE, now=rfc3339(world.now))
        if patch is not None:
            metadata = told.obj["metadata"]
            yield TellPolicy(resource=told.resource, name=metadata["name"], uid=metadata.get("uid", ""), patch=patch)
