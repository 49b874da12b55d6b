"""Property: a rollout keeps its rules, for any events between two instructions and any delay of the controller's view.

The controller is killed before, between and after its writes; its mirrors are behind, nodes and pods apart; people
cordon, uncordon, ask, and change their minds; nodes boot and go. Afterwards the fleet is given time, and every node
either has what it should have or serves with what it had, and says why.
"""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.driver.rollout.conftest import POLICY, wanted
from tests.driver.rollout.simulated_fleet import (
    CRASHES,
    GOOD,
    NO_IMAGE,
    NOT_VALIDATED,
    OTHER_KERNEL,
    SimNode,
    SimulatedFleet,
)
from tests.support.searching import examples

from tessera.driver.node_facts import CHANGING, CORDONED_ANNOTATION, REQUESTED_ANNOTATION, UpgradeState
from tessera.driver.rollout.fleet import RolloutDecision, RolloutSnapshot, decide_rollout
from tessera.driver.rollout.node_view import NodeView, read_node_view
from tessera.driver.rollout.rollout import InFlight
from tessera.gpu_operator.driver_policy import UpgradePolicy
from tessera.kube.resources import Node, Pod
from tessera.replay.recorder import Recorders

FIRST, SECOND, CRASHING, MISSING, UNSURE = "aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc", "dddddddddd", "eeeeeeeeee"
SETS = {FIRST: GOOD, SECOND: GOOD, CRASHING: CRASHES, MISSING: NO_IMAGE, UNSURE: NOT_VALIDATED, OTHER_KERNEL: GOOD}


class Controller:
    """One life of a controller: mirrors that it fills by itself at the start, and what it has under way."""

    def __init__(self, fleet: SimulatedFleet, policy: UpgradePolicy, target: str) -> None:
        self.fleet = fleet
        self.policy = policy
        self.target = target
        self.under_way = InFlight(random.Random(0))
        self.recorders = Recorders()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, tuple[Pod, ...]] = {}
        self.failures = fleet.failures
        self.writes = 0
        for name in fleet.nodes:
            self.deliver(name)

    def deliver(self, name: str, *, node: bool = True, pods: bool = True) -> None:
        """The watches show a node, or that it is gone."""
        if name not in self.fleet.nodes:
            self.nodes.pop(name, None)
            self.pods.pop(name, None)
            return
        if node or name not in self.nodes:
            self.nodes[name] = self.fleet.node_object(name)
        if pods or name not in self.pods:
            self.pods[name] = self.fleet.pod_objects(name)

    def views(self) -> list[NodeView]:
        return [self._view(name) for name in self.nodes]

    def _view(self, name: str) -> NodeView:
        found = self.fleet.nodes.get(name)
        now = self.fleet.now

        def validated(set_: str) -> bool:
            return found is not None and any(
                each.uid == found.validated and each.set == set_ and each.phase == "ready" for each in found.drivers
            )

        target = self.target
        if found is not None and (found.moved or found.set == OTHER_KERNEL):
            target = "" if found.moved else OTHER_KERNEL
        return read_node_view(self.nodes[name], self.pods[name], wanted(target), validated=validated, now=now)

    def round(self, most: int | None = None) -> RolloutDecision:
        """One round, cut off after ``most`` instructions."""
        views = self.views()
        self.under_way.update(views, self.fleet.now)
        snapshot = RolloutSnapshot(
            views=tuple(views),
            policies={POLICY: self.policy},
            failures=self.failures,
            now=self.fleet.now,
            busy=self.under_way.busy,
        )
        decision = self.recorders.call("driver-rollout", decide_rollout, snapshot)
        for instruction in decision.instructions:
            if not self.under_way.start(instruction):
                continue
            if most == 0:
                break
            most = None if most is None else most - 1
            self.writes += 1
            answer = self.fleet.execute(instruction)
            self.failures = self.fleet.failures
            self.under_way.finish(instruction, answer, self.fleet.now)
        return decision


def settled(fleet: SimulatedFleet, controller: Controller) -> RolloutDecision:
    """Gives everything time: all parts move, all is seen, and time passes where nothing moves."""
    decision, quiet = RolloutDecision(), 0
    for _ in range(3000):
        for node in fleet.nodes.values():
            node.ready = True
            for part in fleet.parts():
                part(node)
        for name in {*fleet.nodes, *controller.nodes}:
            controller.deliver(name)
        before = controller.writes
        decision = controller.round()
        quiet = quiet + 1 if controller.writes == before else 0
        if quiet > 3:
            due = [each for each in (decision.until, controller.under_way.until) if each is not None]
            if not due:
                return decision
            fleet.now = max(fleet.now, min(due))
        fleet.now += 1
    raise AssertionError(f"it never comes to rest: {decision}")


def in_service(node: SimNode) -> str:
    """Returns the faults of a node after everything had time; empty if there are none."""
    if node.state.active or node.set == CHANGING:
        return f"{node.name} is left in {node.state.value}, set {node.set}"
    if not node.serves:
        return f"{node.name} does not serve: {node}"
    if node.unschedulable and node.cordoned_by != "person":
        return f"{node.name} is left cordoned"
    return ""


NODES = tuple(f"n{number}" for number in range(5))
some_node = st.sampled_from(NODES)


class Rollouts(RuleBasedStateMachine):
    @initialize(
        budget=st.integers(1, 3),
        parallel=st.integers(1, 3),
        out=st.integers(1, 3),
        canary=st.integers(0, 2),
        manager=st.booleans(),
    )
    def begin(self, budget: int, parallel: int, out: int, canary: int, manager: bool) -> None:
        self.fleet = SimulatedFleet(list(NODES), FIRST, SETS, parallel, out, manager=manager)
        policy = UpgradePolicy(max_parallel=parallel, max_unavailable=out, canary=canary, failure_budget=budget)
        self.controller = Controller(self.fleet, policy, SECOND)

    def _node(self, name: str) -> SimNode | None:
        return self.fleet.nodes.get(name)

    @rule(most=st.none() | st.integers(0, 4))
    def a_round(self, most: int | None) -> None:
        self.controller.round(most)
        if most is not None:
            self.killed()

    @rule()
    def killed(self) -> None:
        old = self.controller
        self.controller = Controller(self.fleet, old.policy, old.target)

    @rule(name=some_node, node=st.booleans(), pods=st.booleans())
    def a_watch_shows(self, name: str, node: bool, pods: bool) -> None:
        self.controller.deliver(name, node=node, pods=pods)

    @rule()
    def all_is_seen(self) -> None:
        for name in NODES:
            self.controller.deliver(name)

    @rule(name=some_node, part=st.integers(0, 4))
    def a_part_moves(self, name: str, part: int) -> None:
        node = self._node(name)
        if node is not None:
            self.fleet.parts()[part](node)

    @rule(rounds=st.integers(1, 6))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            for node in self.fleet.nodes.values():
                for part in self.fleet.parts():
                    part(node)
            self.all_is_seen()
            self.controller.round()

    @rule(seconds=st.sampled_from([1, 30, 301, 700, 1500]))
    def time_passes(self, seconds: int) -> None:
        self.fleet.now += seconds

    @rule(name=some_node, blocked=st.booleans(), stays=st.booleans())
    def a_pod_comes(self, name: str, blocked: bool, stays: bool) -> None:
        if self._node(name) is not None:
            self.fleet.add_pod(name, blocked=blocked and not stays, stays=stays)

    @rule(name=some_node)
    def a_pod_ends(self, name: str) -> None:
        node = self._node(name)
        if node is not None and node.pods:
            del node.pods[0]

    @rule(name=some_node)
    def a_person_cordons(self, name: str) -> None:
        node = self._node(name)
        if node is not None and not node.unschedulable and CORDONED_ANNOTATION not in node.annotations:
            node.unschedulable, node.cordoned_by = True, "person"
            node.version += 1

    @rule(name=some_node)
    def a_person_uncordons(self, name: str) -> None:
        node = self._node(name)
        if node is not None and node.unschedulable:
            node.unschedulable, node.cordoned_by = False, ""
            node.version += 1

    @rule(name=some_node)
    def a_person_asks(self, name: str) -> None:
        node = self._node(name)
        if node is not None:
            node.annotations[REQUESTED_ANNOTATION] = "true"
            node.version += 1

    @rule(name=some_node)
    def a_node_boots(self, name: str) -> None:
        node = self._node(name)
        if node is not None:
            self.fleet.reboot(node)

    @rule(name=some_node)
    def a_node_boots_into_another_kernel(self, name: str) -> None:
        node = self._node(name)
        if node is not None and node.set != OTHER_KERNEL:
            self.fleet.other_kernel(node)

    @rule(name=some_node)
    def a_node_comes_up(self, name: str) -> None:
        node = self._node(name)
        if node is not None:
            self.fleet.comes_up(node)

    @precondition(lambda self: len(self.fleet.nodes) > 2)
    @rule(name=some_node)
    def a_node_goes(self, name: str) -> None:
        self.fleet.nodes.pop(name, None)

    @rule(set_=st.sampled_from(sorted(SETS.keys() - {OTHER_KERNEL})))
    def another_set_is_wanted(self, set_: str) -> None:
        self.controller.target = set_

    @rule(on=st.booleans())
    def auto_upgrade_is(self, on: bool) -> None:
        self.controller.policy = msgspec.structs.replace(self.controller.policy, auto_upgrade=on)

    @invariant()
    def nothing_forbidden_was_done(self) -> None:
        fleet: SimulatedFleet | None = getattr(self, "fleet", None)
        assert fleet is None or fleet.violations == []

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        decision = settled(self.fleet, self.controller)
        assert self.fleet.violations == []
        for node in self.fleet.nodes.values():
            assert in_service(node) == ""
            if node.set not in {self.controller.target, OTHER_KERNEL}:
                assert decision.notes.get(node.name), f"{node.name} has {node.set} and nobody says why"


Rollouts.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRollouts = Rollouts.TestCase


def new_fleet(count: int, policy: UpgradePolicy, target: str) -> tuple[SimulatedFleet, Controller]:
    names = [f"n{number}" for number in range(count)]
    fleet = SimulatedFleet(names, FIRST, SETS, policy.max_parallel, int(policy.max_unavailable))
    return fleet, Controller(fleet, policy, target)


BUDGETS = pytest.mark.parametrize("budget", [1, 2, 3])


@BUDGETS
@pytest.mark.parametrize("bad", [CRASHING, UNSURE])
def test_a_bad_image_affects_as_many_of_10_nodes_as_the_budget_says_and_they_are_rolled_back(
    bad: str, budget: int
) -> None:
    policy = UpgradePolicy(max_parallel=1, max_unavailable=3, canary=1, failure_budget=budget)
    fleet, controller = new_fleet(10, policy, bad)
    decision = settled(fleet, controller)
    assert len(fleet.touched) == budget
    assert {node.set for node in fleet.nodes.values()} == {FIRST}
    assert all(node.serves and not node.unschedulable for node in fleet.nodes.values())
    assert f"{budget} failed, the budget is {budget}" in decision.stopped[POLICY]
    cause = "ended 5 times" if bad == CRASHING else "not validated within 600 s"
    assert cause in decision.stopped[POLICY]
    assert fleet.violations == []


def test_an_image_that_is_nowhere_affects_no_node() -> None:
    fleet, controller = new_fleet(10, UpgradePolicy(max_parallel=2, max_unavailable=3), MISSING)
    decision = settled(fleet, controller)
    assert fleet.touched == set()
    assert "did not arrive on the node" in decision.stopped[POLICY]
    assert [node.state for node in fleet.nodes.values()].count(UpgradeState.FAILED) == 1


def test_with_budget_2_and_one_node_that_fails_the_others_go_on() -> None:
    fleet, controller = new_fleet(6, UpgradePolicy(max_parallel=2, max_unavailable=2, failure_budget=2), SECOND)
    fleet.add_pod("n3", blocked=True)
    for name in ("n0", "n1", "n2", "n4", "n5"):
        fleet.add_pod(name)
    settled(fleet, controller)
    sets = {name: node.set for name, node in fleet.nodes.items()}
    assert sets == {"n0": SECOND, "n1": SECOND, "n2": SECOND, "n3": FIRST, "n4": SECOND, "n5": SECOND}
    assert fleet.nodes["n3"].state is UpgradeState.FAILED
    assert fleet.nodes["n3"].serves


def test_a_failed_set_is_remembered_over_restarts_and_the_loss_of_its_node() -> None:
    fleet, controller = new_fleet(4, UpgradePolicy(max_parallel=1, max_unavailable=1), CRASHING)
    settled(fleet, controller)
    (failed,) = fleet.touched
    del fleet.nodes[failed]
    decision = settled(fleet, Controller(fleet, controller.policy, CRASHING))
    assert fleet.touched == {failed}
    assert failed in decision.stopped[POLICY]


def test_another_set_goes_on_where_the_first_was_given_up() -> None:
    fleet, controller = new_fleet(4, UpgradePolicy(max_parallel=1, max_unavailable=1), CRASHING)
    settled(fleet, controller)
    controller.target = SECOND
    settled(fleet, controller)
    assert {node.set for node in fleet.nodes.values()} == {SECOND}
    assert {node.state for node in fleet.nodes.values()} == {UpgradeState.DONE}


@pytest.mark.parametrize("target", [SECOND, CRASHING])
def test_a_controller_that_dies_after_every_single_write_comes_to_the_same_end(target: str) -> None:
    policy = UpgradePolicy(max_parallel=2, max_unavailable=2)
    fleet, controller = new_fleet(4, policy, target)
    for name in list(fleet.nodes)[:3]:
        fleet.add_pod(name)
    for _ in range(600):
        for node in fleet.nodes.values():
            for part in fleet.parts():
                part(node)
        controller = Controller(fleet, policy, target)
        controller.round(most=1)
        fleet.now += 1
    assert all(in_service(node) == "" for node in fleet.nodes.values())
    wanted_sets = {SECOND} if target == SECOND else {FIRST}
    assert {node.set for node in fleet.nodes.values()} == wanted_sets
    assert len(fleet.touched) == (4 if target == SECOND else 1)
    assert fleet.violations == []
