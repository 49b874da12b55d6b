"""The reason that `tessera why` names is the one whose removal lets the pod run.

Clusters are made, the reason is read, what it names is removed, and the pod gets its place. Where room is said to be
fragmented, enough memory is free.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.test_pods import NOW, agents_of, cards, lease, node, pod
from tests.support.searching import examples

from tessera.explain.changes import allocations_to_end, obstacles_by_node
from tessera.explain.explanation import Explanation
from tessera.explain.offered_resources import refusal_facts
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.mig.layout_planning import plan_layout
from tessera.mig.models import model_by_short_name
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import Fragmented, Full, NoNode

GEOMETRY = model_by_short_name("A100-40GB").geometry
TAINTS = ("team", "maintenance")
MISMATCH = NodeRule(RuleKind.AFFINITY)
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
Held = tuple[str, str, int, int, str]


@dataclass(frozen=True)
class Machine:
    """A node with one card: what stands on it, and what keeps pods away."""

    name: str
    held: tuple[Held, ...] = ()
    taints: frozenset[str] = frozenset()
    cordoned: bool = False
    ready: bool = True
    fast: bool = True
    cpu: int = 8


@dataclass(frozen=True)
class ClusterAndPod:
    machines: tuple[Machine, ...]
    profile: str
    cpu: int
    selects: bool

    @property
    def view(self) -> ClusterView:
        who = pod("waits", self.profile, limits={"cpu": str(self.cpu)}, spec=self.selector)
        nodes = [
            node(
                each.name,
                {"nvidia.com/mig.config": "dynamic", **({"disk": "fast"} if each.fast else {})},
                ready="True" if each.ready else "False",
                unschedulable=each.cordoned,
                taints=[{"key": key, "effect": "NoSchedule"} for key in sorted(each.taints)],
            )
            for each in self.machines
        ]
        for one, machine in zip(nodes, self.machines, strict=True):
            one.status.allocatable["cpu"] = str(machine.cpu)
        held = [cards(*each.held, name=each.name) for each in self.machines]
        return ClusterView(
            Snapshot(now=NOW, pods=[who, *agents_of(nodes)], nodes=nodes, instaslices=held, leases=[lease()])
        )

    @property
    def selector(self) -> dict[str, object]:
        return {"nodeSelector": {"disk": "fast"}} if self.selects else {}

    def without(self, name: str, rules: tuple[NodeRule, ...], owners: set[str]) -> "ClusterAndPod":
        """Returns the cluster after somebody followed the advice."""
        return replace(self, machines=tuple(_mended(m, rules, owners) if m.name == name else m for m in self.machines))


def _mended(machine: Machine, rules: tuple[NodeRule, ...], owners: set[str]) -> Machine:
    held = tuple(each for each in machine.held if f"team/{each[0]}" not in owners)
    machine = replace(machine, held=held)
    for rule in rules:
        if rule == MISMATCH:
            machine = replace(machine, fast=True)
        elif rule.kind is RuleKind.UNSCHEDULABLE:
            machine = replace(machine, cordoned=False)
        elif rule.kind is RuleKind.NOT_READY:
            machine = replace(machine, ready=True)
        elif rule == NodeRule(RuleKind.TOO_SMALL, "cpu"):
            machine = replace(machine, cpu=64)
        else:
            (key,) = [each for each in TAINTS if each in rule.about]
            machine = replace(machine, taints=machine.taints - {key})
    return machine


@st.composite
def machines(draw: st.DrawFn, name: str) -> Machine:
    wanted: dict[str, int] = {}
    for profile in draw(st.lists(st.sampled_from(PROFILES), max_size=6)):
        more = {**wanted, profile: wanted.get(profile, 0) + 1}
        if isinstance(plan_layout(GEOMETRY, more), tuple):
            wanted = more
    placed = plan_layout(GEOMETRY, wanted)
    assert isinstance(placed, tuple)
    stays = [each for each in placed if draw(st.booleans())]
    return Machine(
        name=name,
        held=tuple((f"{name}-{n}", one.profile, one.start, one.size, "created") for n, one in enumerate(stays)),
        taints=draw(st.frozensets(st.sampled_from(TAINTS), max_size=2)) if draw(st.booleans()) else frozenset(),
        cordoned=draw(st.integers(0, 3)) == 0,
        ready=draw(st.integers(0, 3)) > 0,
        fast=draw(st.booleans()),
        cpu=draw(st.sampled_from([1, 8])),
    )


@st.composite
def clusters_with_pod(draw: st.DrawFn) -> ClusterAndPod:
    count = draw(st.integers(1, 3))
    return ClusterAndPod(
        machines=tuple(draw(machines(f"n{n}")) for n in range(count)),
        profile=draw(st.sampled_from(PROFILES)),
        cpu=draw(st.sampled_from([1, 4])),
        selects=draw(st.booleans()),
    )


def read(cluster: ClusterAndPod) -> tuple[ClusterView, Explanation]:
    view = cluster.view
    return view, explain_pod(view, view.snapshot.pods[0])


def runs(cluster: ClusterAndPod) -> bool:
    return read(cluster)[1].case == "placing"


@given(clusters_with_pod())
@settings(max_examples=examples(150))
def test_what_is_named_removed_lets_the_pod_run(cluster: ClusterAndPod) -> None:
    view, found = read(cluster)
    if found.case == "placing":
        return
    assert view.slicer is not None
    reason = view.slicer.state.waiting["uid-waits"].reason  # type: ignore[index]
    facts = view.slicer.state.cluster.pods["uid-waits"]  # type: ignore[index]
    if isinstance(reason, Full | Fragmented):
        assert found.case == ("full" if isinstance(reason, Full) else "fragmented")
        assert reason.frees, "one slice is freed by a few ends"
        where, owners = reason.frees[0].node, {each.pod for each in reason.frees}
        assert runs(cluster.without(where, (), owners))
        assert all(owner in found.help[0] for owner in owners)
        admits = [name for name, rules in view.slicer.planner.objections(facts).items() if not rules]
        free = sum(
            card.table.usable_slots(card.occupancy)
            for n in admits
            for card in view.slicer.state.inventory.fleet.cards(n)
        )
        size = GEOMETRY.profile(cluster.profile).size
        assert (free >= size) == isinstance(reason, Fragmented)
        return
    assert isinstance(reason, NoNode)
    assert found.case == reason.case
    way = obstacles_by_node(view.slicer, facts)[0]
    owners = {each.pod for each in allocations_to_end(view.slicer, facts, way)}
    assert way.rules, "a node that no rule closes would have been the reason"
    assert runs(cluster.without(way.node, way.rules, owners))
    assert way.node in found.help[0] or {MISMATCH, NodeRule(RuleKind.TOO_SMALL, "cpu")} & {*way.rules}
    assert all(owner in found.help[0] for owner in owners)
    for left in way.rules:  # and nothing is named that need not go
        assert not runs(cluster.without(way.node, tuple(each for each in way.rules if each != left), owners))


def test_nodes_that_are_full_are_the_reason_though_one_with_room_fails_the_selector() -> None:
    full = [Machine(name, ((f"x-{name}", "7g.40gb", 0, 8, "created"),)) for name in "bc"]
    cluster = ClusterAndPod((Machine("a", fast=False), *full), "3g.20gb", 1, selects=True)
    found = read(cluster)[1]
    assert found.case == "full"
    assert found.verdict == "waits for room; every card that it may use is full for 3g.20gb"
    assert found.help[0].startswith("there is room as soon as this ends, on node ")
    assert found.help[-1].startswith("or use node a, which has room: change the pod's nodeSelector")


def test_all_that_closes_a_node_is_named_together() -> None:
    found = read(ClusterAndPod((Machine("a", taints=frozenset(TAINTS), cpu=1),), "3g.20gb", 4, selects=False))[1]
    assert found.case == "no-node"
    (line,) = found.help
    assert "the taints maintenance and team, or remove them (kubectl taint node a maintenance- team-); and " in line
    assert "request less" in line


def test_room_that_is_spread_over_nodes_is_fragmented_not_full() -> None:
    held = tuple((f"h{n}", "1g.5gb", start, 1, "created") for n, start in enumerate((0, 1, 2, 4, 5)))
    other = tuple((f"o{n}", "1g.5gb", each[2], 1, "created") for n, each in enumerate(held))
    found = read(ClusterAndPod((Machine("a", held), Machine("b", other)), "3g.20gb", 1, selects=False))[1]
    assert found.case == "fragmented"
    assert "6 memory slots free, at most 3 on one card" in found.verdict


def test_rules_without_number_are_told_up_to_a_bound() -> None:
    """Every node of a large cluster may have a taint of its own."""
    rules = {NodeRule(RuleKind.TAINT, f"node-{n}: x"): [f"n{n}"] for n in range(30)}
    facts = list(refusal_facts(rules, {}, lambda _node, _resource, _whole: 0))
    assert len(facts) == 9
    assert facts[-1] == "and 22 rarer rules"
