"""A whole cluster changes its driver: the real controller and agents, simulated nodes, images and workloads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.fleet import BAD, NEW, OLD, SECOND_KERNEL, Fleet, Scenario, boot, play
from tests.support.booted_lab import BootedLabs

from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DRIVER_SET_LABEL
from tessera.driver.rollout.candidates import FAILURES_CONFIG_MAP
from tessera.kube.resources import CONFIGMAPS, NODES

#: Nodes that several tests have.
SHARED = ("4*1xA100-40GB", "2*1xA100-40GB")


@pytest.fixture
def in_fleet(tmp_path: Path, booted_labs: BootedLabs) -> Callable[..., None]:
    """Runs a scenario in a cluster whose nodes have come up with the old driver."""

    def run(scenario: Scenario, nodes: str = "4*1xA100-40GB", **options: Any) -> None:
        if options or nodes not in SHARED:
            play(tmp_path, scenario, nodes, **options)
        else:
            booted_labs.run(("fleet", nodes), partial(boot, nodes=nodes), scenario)

    return run


class Course:
    """The states of a rollout that were observed at each change of an object."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.begun: list[str] = []  # nodes in the order in which they were cordoned
        self.most = 0  # out of service at a time
        self.proven = 0  # nodes that served with the new driver when the second one was cordoned
        self.pulled: set[str] = set()  # nodes that had the image when they were cordoned
        self._images: set[str] = set()  # nodes on which a pod that brings it was seen to be past that

    def note(self) -> None:
        """Looks once more."""
        fleet = self._fleet
        brought = [pod for pod in fleet.pulls.cache.values() if pod.status.phase in {"Running", "Succeeded"}]
        self._images |= {pod.spec.node_name for pod in brought}
        out = [name for name in fleet.cluster.nodes if fleet.node(name).spec.unschedulable]
        self.most = max(self.most, len(out))
        for name in out:
            if name not in self.begun:
                self.begun.append(name)
                self.pulled |= {name} & self._images
                if len(self.begun) == 2:
                    self.proven = list(fleet.states().values()).count("upgrade-done")


def test_a_fleet_changes_its_driver_canary_first_and_busy_nodes_last_and_serves_again(
    in_fleet: Callable[..., None],
) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.workload("train", "node-1")
        await fleet.reach(lambda: fleet.ready_of("train"), "it runs")
        first = fleet.ready_of("train")
        assert fleet.node_of(first) == "node-1"
        course, done = Course(fleet), list[str]()

        def all_done() -> bool:
            course.note()
            done.extend(name for name, state in fleet.states().items() if state == "upgrade-done" and name not in done)
            return len(done) == 4

        await fleet.ask_for(NEW)
        await fleet.reach(all_done, "all are done")
        assert set(fleet.loaded().values()) == {NEW}
        assert fleet.all_serve()
        assert not any(fleet.node(name).spec.unschedulable for name in fleet.cluster.nodes)
        assert sorted(course.begun) == sorted(fleet.cluster.nodes)
        assert (course.proven, course.most) == (1, 2)
        assert course.pulled == set(fleet.cluster.nodes)
        assert done[-1] == "node-1"
        await fleet.reach(lambda: fleet.ready_of("train") not in {"", first}, "it runs again, elsewhere")
        await fleet.reach(lambda: not fleet.pulls.cache.values(), "the pods that brought the image are gone")

    in_fleet(scenario)


def test_a_bad_image_on_5_nodes_costs_one_which_is_rolled_back_and_told(in_fleet: Callable[..., None]) -> None:
    async def scenario(fleet: Fleet) -> None:
        before = {name: fleet.node(name).metadata.labels[DRIVER_SET_LABEL] for name in fleet.cluster.nodes}
        ever: set[str] = set()

        def back() -> bool:
            ever.update(name for name in before if fleet.node(name).metadata.labels[DRIVER_SET_LABEL] != before[name])
            ever.update(name for name in before if fleet.node(name).spec.unschedulable)
            failed = "upgrade-failed" in fleet.states().values()
            return failed and fleet.all_serve() and set(fleet.loaded().values()) == {OLD}

        await fleet.ask_for(BAD)
        await fleet.reach(back, "the canary failed and was rolled back")
        await fleet.clock.sleep(1200)
        assert back()
        assert {name: fleet.node(name).metadata.labels[DRIVER_SET_LABEL] for name in before} == before
        (failed,) = [name for name, state in fleet.states().items() if state == "upgrade-failed"]
        assert ever == {failed}
        record = fleet.record(failed)
        assert record is not None
        assert "ended 5 times" in record.cause
        assert [each.reason for each in fleet.events_of(failed, "DriverRolledBack")] == ["DriverRolledBack"]
        other = next(name for name in before if name != failed)
        told = fleet.node(other).metadata.annotations[DRIVER_ANNOTATION]
        assert f"1 failed, the budget is 1; node {failed}" in told
        kept = await fleet.client.get(CONFIGMAPS, FAILURES_CONFIG_MAP, "tessera-system")
        assert failed in next(iter(kept.data.values()))
        await fleet.ask_for(NEW)
        await fleet.reach(lambda: "upgrade-done" in fleet.states().values(), "another version goes on")
        assert NEW in fleet.loaded().values()

    in_fleet(scenario, nodes="5*1xA100-40GB")


def test_a_policy_whose_driver_pods_cannot_be_made_empties_no_node(in_fleet: Callable[..., None]) -> None:
    async def scenario(fleet: Fleet) -> None:
        def told() -> bool:
            assert not any(fleet.node(name).spec.unschedulable for name in fleet.cluster.nodes)
            nodes = [fleet.node(name) for name in fleet.cluster.nodes]
            return all("'modules' is not in" in each.metadata.annotations[DRIVER_ANNOTATION] for each in nodes)

        await fleet.ask_for(NEW, kernelModuleConfig={"name": "modules"})
        await fleet.reach(told, "every node tells that the ConfigMap is missing")
        await fleet.clock.sleep(600)
        assert told()
        assert fleet.all_serve()

    in_fleet(scenario, nodes="2*1xA100-40GB")


def test_a_node_that_a_person_cordoned_is_upgraded_when_idle_and_stays_cordoned(in_fleet: Callable[..., None]) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.client.merge_patch(NODES, "node-2", {"spec": {"unschedulable": True}})
        await fleet.ask_for(NEW)
        await fleet.reach(lambda: set(fleet.states().values()) == {"upgrade-done"}, "all are done")
        assert [name for name in fleet.cluster.nodes if fleet.node(name).spec.unschedulable] == ["node-2"]

    in_fleet(scenario, nodes="2*1xA100-40GB")


@pytest.mark.soak
def test_a_controller_that_is_killed_at_every_state_brings_the_rollout_to_its_end(
    in_fleet: Callable[..., None],
) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.workload("train", "node-1")
        await fleet.reach(lambda: fleet.ready_of("train"), "it runs")
        seen: set[tuple[str, str]] = set()

        def new_states() -> set[tuple[str, str]]:
            return {each for each in fleet.states().items() if each[1]} - seen

        await fleet.ask_for(NEW)
        while set(fleet.states().values()) != {"upgrade-done"}:
            await fleet.reach(new_states, "a node comes to another state")
            seen |= new_states()
            await fleet.kill()
        assert {state for _, state in seen} >= {
            "upgrade-required",
            "cordon-required",
            "pod-deletion-required",
            "pod-restart-required",
            "validation-required",
            "uncordon-required",
            "upgrade-done",
        }
        assert set(fleet.loaded().values()) == {NEW}
        await fleet.reach(fleet.all_serve, "all serve")
        evicted = [each.name for each in fleet.cluster.server.audit if each.subresource == "eviction"]
        assert evicted
        assert len(evicted) == len(set(evicted))

    in_fleet(scenario, nodes="2*1xA100-40GB")


@pytest.mark.soak
def test_nodes_that_boot_or_go_in_the_middle_hold_up_nobody(in_fleet: Callable[..., None]) -> None:
    async def scenario(fleet: Fleet) -> None:
        def at_work(state: str) -> str:
            return next((name for name, told in fleet.states().items() if told == state), "")

        await fleet.ask_for(NEW)
        await fleet.reach(lambda: at_work("pod-restart-required"), "the canary changes its driver")
        canary = at_work("pod-restart-required")
        fleet.cluster.nodes[canary].reboot()
        await fleet.reach(lambda: fleet.states()[canary] == "upgrade-done", "it is done all the same")
        await fleet.reach(lambda: at_work("pod-restart-required"), "another one changes its driver")
        await fleet.cluster.remove_node(at_work("pod-restart-required"))
        await fleet.reach(lambda: set(fleet.states().values()) == {"upgrade-done"}, "the others are done")
        assert len(fleet.loaded()) == 3
        assert set(fleet.loaded().values()) == {NEW}
        await fleet.reach(fleet.all_serve, "all serve")

    in_fleet(scenario)


@pytest.mark.soak
def test_a_node_that_boots_into_another_kernel_in_the_middle_gets_what_fits_it(in_fleet: Callable[..., None]) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.ask_for(NEW)
        await fleet.reach(lambda: "pod-restart-required" in fleet.states().values(), "the canary changes its driver")
        canary = next(name for name, state in fleet.states().items() if state == "pod-restart-required")
        fleet.cluster.nodes[canary].reboot(SECOND_KERNEL)
        await fleet.reach(lambda: set(fleet.loaded().values()) == {NEW} and fleet.all_serve(), "all serve")
        await fleet.reach(lambda: set(fleet.states().values()) == {"upgrade-done"}, "all are done")
        assert fleet.node(canary).status.node_info.kernel_version == SECOND_KERNEL
        assert not any(fleet.node(name).spec.unschedulable for name in fleet.cluster.nodes)

    in_fleet(scenario, nodes="2*1xA100-40GB")


@pytest.mark.soak
def test_two_pools_of_one_policy_change_at_once_each_with_a_canary_of_its_own(in_fleet: Callable[..., None]) -> None:
    async def scenario(fleet: Fleet) -> None:
        course = Course(fleet)

        def all_done() -> bool:
            course.note()
            return set(fleet.states().values()) == {"upgrade-done"}

        await fleet.ask_for(NEW)
        await fleet.reach(all_done, "all are done")
        pools = {fleet.node(name).metadata.labels[DRIVER_SET_LABEL] for name in fleet.cluster.nodes}
        assert len(pools) == 2
        assert {name in kernels for name in course.begun[:2]} == {True, False}
        assert course.most == 2
        assert set(fleet.loaded().values()) == {NEW}

    kernels = {"node-3": SECOND_KERNEL, "node-4": SECOND_KERNEL}
    in_fleet(scenario, kernels=kernels)
