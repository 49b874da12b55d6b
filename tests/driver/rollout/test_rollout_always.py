"""Whatever happens between any two instructions, and whatever the controller has not seen yet.

The controller is killed before, between and after its writes; its mirrors are behind, nodes and pods apart; people
cordon, uncordon, ask, and change their minds; nodes boot and go. Afterwards the world is given time, and every node
either has what it should have or serves with what it had, and says why.
"""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.driver.rollout.conftest import POLICY, wanted
from tests.driver.rollout.world import CRASHES, GOOD, NO_IMAGE, OTHER_KERNEL, UNPROVEN, SimNode, World
from tests.support.searching import examples

from tessera.api.driver.driver_policy import UpgradePolicy
from tessera.driver.nodes.upgrade_record import CHANGING, CORDONED_ANNOTATION, REQUESTED_ANNOTATION, UpgradeState
from tessera.driver.rollout.fleet import RolloutDecision, RolloutSnapshot, decide_rollout
from tessera.driver.rollout.in_flight import InFlight
from tessera.driver.rollout.node_view import NodeView
from tessera.driver.rollout.node_view_reader import read_node_view
from tessera.kube.resources import Node, Pod
from tessera.replay.service import Recorders

FIRST, SECOND, CRASHING, MISSING, UNSURE = "aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc", "dddddddddd", "eeeeeeeeee"
SETS = {FIRST: GOOD, SECOND: GOOD, CRASHING: CRASHES, MISSING: NO_IMAGE, UNSURE: UNPROVEN, OTHER_KERNEL: GOOD}


class Controller:
    """One life of a controller: mirrors that it fills by itself at the start, and what it has under way."""

    def __init__(self, world: World, policy: UpgradePolicy, target: str) -> None:
        self.world = world
        self.policy = policy
        self.target = target
        self.under_way = InFlight(random.Random(0))
        self.recorders = Recorders()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, tuple[Pod, ...]] = {}
        self.failures = world.failures
        self.writes = 0
        for name in world.nodes:
            self.deliver(name)

    def deliver(self, name: str, *, node: bool = True, pods: bool = True) -> None:
        """The watches show a node, or that it is gone."""
        if name not in self.world.nodes:
            self.nodes.pop(name, None)
            self.pods.pop(name, None)
            return
        if node or name not in self.nodes:
            self.nodes[name] = self.world.node_object(name)
        if pods or name not in self.pods:
            self.pods[name] = self.world.pod_objects(name)

    def views(self) -> list[NodeView]:
        return [self._view(name) for name in self.nodes]

    def _view(self, name: str) -> NodeView:
        found = self.world.nodes.get(name)
        now = self.world.now

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
        self.under_way.update(views, self.world.now)
        snapshot = RolloutSnapshot(
            views=tuple(views),
            policies={POLICY: self.policy},
            failures=self.failures,
            now=self.world.now,
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
            answer = self.world.execute(instruction)
            self.failures = self.world.failures
            self.under_way.finish(instruction, answer, self.world.now)
        return decision


def settled(world: World, controller: Controller) -> RolloutDecision:
    """Gives everything time: all parts move, all is seen, and time passes where nothing moves."""
    decision, quiet = RolloutDecision(), 0
    for _ in range(3000):
        for node in world.nodes.values():
            node.ready = True
            for part in world.parts():
                part(node)
        for name in {*world.nodes, *controller.nodes}:
            controller.deliver(name)
        before = controller.writes
        decision = controller.round()
        quiet = quiet + 1 if controller.writes == before else 0
        if quiet > 3:
            due = [each for each in (decision.until, controller.under_way.until) if each is not None]
            if not due:
                return decision
            world.now = max(world.now, min(due))
        world.now += 1
    raise AssertionError(f"it never comes to rest: {decision}")


def in_service(node: SimNode) -> str:
    """What is wrong with a node after everything had time; empty if nothing is."""
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
        self.world = World(list(NODES), FIRST, SETS, parallel, out, manager=manager)
        policy = UpgradePolicy(max_parallel=parallel, max_unavailable=out, canary=canary, failure_budget=budget)
        self.controller = Controller(self.world, policy, SECOND)

    def _node(self, name: str) -> SimNode | None:
        return self.world.nodes.get(name)

    @rule(most=st.none() | st.integers(0, 4))
    def a_round(self, most: int | None) -> None:
        self.controller.round(most)
        if most is not None:
            self.killed()

    @rule()
    def killed(self) -> None:
        old = self.controller
        self.controller = Controller(self.world, old.policy, old.target)

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
            self.world.parts()[part](node)

    @rule(rounds=st.integers(1, 6))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            for node in self.world.nodes.values():
                for part in self.world.parts():
                    part(node)
            self.all_is_seen()
            self.controller.round()

    @rule(seconds=st.sampled_from([1, 30, 301, 700, 1500]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds

    @rule(name=some_node, blocked=st.booleans(), stays=st.booleans())
    def a_pod_comes(self, name: str, blocked: bool, stays: bool) -> None:
        if self._node(name) is not None:
            self.world.add_pod(name, blocked=blocked and not stays, stays=stays)

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
            self.world.reboot(node)

    @rule(name=some_node)
    def a_node_boots_into_another_kernel(self, name: str) -> None:
        node = self._node(name)
        if node is not None and node.set != OTHER_KERNEL:
            self.world.other_kernel(node)

    @rule(name=some_node)
    def a_node_comes_up(self, name: str) -> None:
        node = self._node(name)
        if node is not None:
            self.world.comes_up(node)

    @precondition(lambda self: len(self.world.nodes) > 2)
    @rule(name=some_node)
    def a_node_goes(self, name: str) -> None:
        self.world.nodes.pop(name, None)

    @rule(set_=st.sampled_from(sorted(SETS.keys() - {OTHER_KERNEL})))
    def another_set_is_wanted(self, set_: str) -> None:
        self.controller.target = set_

    @rule(on=st.booleans())
    def auto_upgrade_is(self, on: bool) -> None:
        self.controller.policy = msgspec.structs.replace(self.controller.policy, auto_upgrade=on)

    @invariant()
    def nothing_forbidden_was_done(self) -> None:
        world: World | None = getattr(self, "world", None)
        assert world is None or world.violations == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        decision = settled(self.world, self.controller)
        assert self.world.violations == []
        for node in self.world.nodes.values():
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


def fleet(count: int, policy: UpgradePolicy, target: str) -> tuple[World, Controller]:
    names = [f"n{number}" for number in range(count)]
    world = World(names, FIRST, SETS, policy.max_parallel, int(policy.max_unavailable))
    return world, Controller(world, policy, target)


BUDGETS = pytest.mark.parametrize("budget", [1, 2, 3])


@BUDGETS
@pytest.mark.parametrize("bad", [CRASHING, UNSURE])
def test_a_bad_image_affects_as_many_of_10_nodes_as_the_budget_says_and_they_are_rolled_back(
    bad: str, budget: int
) -> None:
    policy = UpgradePolicy(max_parallel=1, max_unavailable=3, canary=1, failure_budget=budget)
    world, controller = fleet(10, policy, bad)
    decision = settled(world, controller)
    assert len(world.touched) == budget
    assert {node.set for node in world.nodes.values()} == {FIRST}
    assert all(node.serves and not node.unschedulable for node in world.nodes.values())
    assert f"{budget} failed, the budget is {budget}" in decision.stopped[POLICY]
    cause = "ended 5 times" if bad == CRASHING else "not validated within 600 s"
    assert cause in decision.stopped[POLICY]
    assert world.violations == []


def test_an_image_that_is_nowhere_affects_no_node() -> None:
    world, controller = fleet(10, UpgradePolicy(max_parallel=2, max_unavailable=3), MISSING)
    decision = settled(world, controller)
    assert world.touched == set()
    assert "did not arrive on the node" in decision.stopped[POLICY]
    assert [node.state for node in world.nodes.values()].count(UpgradeState.FAILED) == 1


def test_with_budget_2_and_one_node_that_fails_the_others_go_on() -> None:
    world, controller = fleet(6, UpgradePolicy(max_parallel=2, max_unavailable=2, failure_budget=2), SECOND)
    world.add_pod("n3", blocked=True)
    for name in ("n0", "n1", "n2", "n4", "n5"):
        world.add_pod(name)
    settled(world, controller)
    sets = {name: node.set for name, node in world.nodes.items()}
    assert sets == {"n0": SECOND, "n1": SECOND, "n2": SECOND, "n3": FIRST, "n4": SECOND, "n5": SECOND}
    assert world.nodes["n3"].state is UpgradeState.FAILED
    assert world.nodes["n3"].serves


def test_a_failed_set_is_remembered_over_restarts_and_the_loss_of_its_node() -> None:
    world, controller = fleet(4, UpgradePolicy(max_parallel=1, max_unavailable=1), CRASHING)
    settled(world, controller)
    (failed,) = world.touched
    del world.nodes[failed]
    decision = settled(world, Controller(world, controller.policy, CRASHING))
    assert world.touched == {failed}
    assert failed in decision.stopped[POLICY]


def test_another_set_goes_on_where_the_first_was_given_up() -> None:
    world, controller = fleet(4, UpgradePolicy(max_parallel=1, max_unavailable=1), CRASHING)
    settled(world, controller)
    controller.target = SECOND
    settled(world, controller)
    assert {node.set for node in world.nodes.values()} == {SECOND}
    assert {node.state for node in world.nodes.values()} == {UpgradeState.DONE}


@pytest.mark.parametrize("target", [SECOND, CRASHING])
def test_a_controller_that_dies_after_every_single_write_comes_to_the_same_end(target: str) -> None:
    policy = UpgradePolicy(max_parallel=2, max_unavailable=2)
    world, controller = fleet(4, policy, target)
    for name in list(world.nodes)[:3]:
        world.add_pod(name)
    for _ in range(600):
        for node in world.nodes.values():
            for part in world.parts():
                part(node)
        controller = Controller(world, policy, target)
        controller.round(most=1)
        world.now += 1
    assert all(in_service(node) == "" for node in world.nodes.values())
    wanted_sets = {SECOND} if target == SECOND else {FIRST}
    assert {node.set for node in world.nodes.values()} == wanted_sets
    assert len(world.touched) == (4 if target == SECOND else 1)
    assert world.violations == []
