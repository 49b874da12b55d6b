"""Nodes that reboot: because a layout needs it, and because somebody does it; what comes back, and what does not."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.agent.mig_config.card_reconciler import REBOOT_TIMEOUT
from tessera.api.names import MIG_CONFIG_STATE_LABEL
from tessera.kube.resources import DAEMONSETS
from tessera.nvml.errors import NotSupported, ResetRequired

TWO = "2xA100-40GB,2xA100-40GB"
SLICES = {"nvidia.com/mig-1g.5gb": 14}


@pytest.fixture
def static(in_lab: InLab) -> Callable[..., None]:
    """Runs a scenario in a cluster whose nodes have no layout."""

    def run(scenario: Callable[[Any], Any], nodes: str = TWO, **options: Any) -> None:
        in_lab(scenario, nodes=nodes, mig_config="", **options)

    return run


class History:
    """The states of a node that the API server sent, in order, repeats left out."""

    def __init__(self, lab: VirtualLab, name: str = "node-1") -> None:
        self.states: list[str] = []
        self.boots: list[str] = []
        self._name = name
        lab.nodes.add_handler(lambda event: self._saw(event.object))
        self._saw(lab.nodes.cache.get(name))

    def _saw(self, node: Any) -> None:
        if node.metadata.name == self._name:
            state = node.metadata.labels.get(MIG_CONFIG_STATE_LABEL, "")
            boot = node.status.node_info.boot_id
            self.states += [state] if state and self.states[-1:] != [state] else []
            self.boots += [boot] if self.boots[-1:] != [boot] else []


def no_reset(lab: VirtualLab, node: str = "node-1") -> Any:
    """MIG mode of the node's cards changes only with a reset, and none can be reset."""
    machine = lab.machine(node)
    machine.fail("set_mig_mode", ResetRequired, times=None)
    machine.fail("reset", NotSupported, times=None)
    return machine


async def let_agents_reboot(lab: VirtualLab) -> None:
    found = await lab.client.get(DAEMONSETS.as_dicts(), "tessera-agent", "tessera-system")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["args"].append("--mig-reboot")
    spec = {"template": {"spec": {"containers": [container]}}}
    await lab.client.merge_patch(DAEMONSETS.as_dicts(), "tessera-agent", {"spec": spec}, "tessera-system")

    async def rolled() -> bool:
        status = (await lab.client.get(DAEMONSETS.as_dicts(), "tessera-agent", "tessera-system"))["status"]
        return bool(status["updatedNumberScheduled"] == status["numberAvailable"] == len(lab.cluster.nodes))

    while not await rolled():
        await lab.clock.sleep(1)


def boot_id(lab: VirtualLab, node: str = "node-1") -> str:
    return str(lab.existing_node(node).status.node_info.boot_id)


async def rebooted(lab: VirtualLab, node: str = "node-1") -> None:
    """Reboots a node and waits until its kubelet is back."""
    before = boot_id(lab, node)
    lab.cluster.nodes[node].reboot()
    await lab.until(lambda: boot_id(lab, node) != before, f"{node} has rebooted")


# Reboots that a layout needs -----------------------------------------------------------------------------------------


def test_a_layout_whose_cards_cannot_be_reset_is_in_force_after_one_reboot(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await let_agents_reboot(lab)
        no_reset(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        await lab.create("elsewhere", {"nvidia.com/gpu": 1}, nodeSelector={"kubernetes.io/hostname": "node-2"})
        await lab.running("elsewhere")
        uid, there = lab.existing_pod("elsewhere").metadata.uid, boot_id(lab, "node-2")
        history = History(lab)
        await lab.label("node-1", layout="all-1g.5gb")
        await lab.becomes(SLICES)
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[0] == "True", "the layout is in force")
        await lab.clock.sleep(2 * REBOOT_TIMEOUT)
        assert history.states == ["pending", "rebooting", "success"]
        assert len(history.boots) == 2
        assert (lab.existing_pod("elsewhere").metadata.uid, lab.phase("elsewhere")) == (uid, "Running")
        assert lab.existing_pod("elsewhere").status.container_statuses[0].restart_count == 0
        assert boot_id(lab, "node-2") == there

    static(scenario)


def test_a_reboot_waits_for_the_pods_of_the_node(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await let_agents_reboot(lab)
        no_reset(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        await lab.create("busy", {"nvidia.com/gpu": 1})
        await lab.running("busy")
        history = History(lab)
        await lab.label("node-1", layout="all-1g.5gb")
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[1] == "CardsInUse", "the pod is waited for")
        await lab.clock.sleep(REBOOT_TIMEOUT)
        assert (len(history.boots), lab.phase("busy")) == (1, "Running")
        await lab.delete("busy")
        await lab.becomes(SLICES)
        assert len(history.boots) == 2

    static(scenario, nodes="2xA100-40GB")


def test_a_reboot_that_does_not_help_is_not_repeated(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await let_agents_reboot(lab)
        no_reset(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        history = History(lab)
        await lab.label("node-1", layout="all-1g.10gb")
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[:2] == ("False", "ResetRequired"), "it has failed")
        assert "rebooted for this layout once, which did not help" in lab.condition("GpuMigLayoutApplied")[2]
        await lab.clock.sleep(2 * REBOOT_TIMEOUT)
        assert len(history.boots) == 2
        assert history.states[-1] == "failed"
        assert history.states.count("rebooting") == 1
        lab.machine().heal()
        await lab.becomes({"nvidia.com/mig-1g.10gb": 14})
        await lab.until(lambda: history.states[-1] == "success", "the label says so")
        assert len(history.boots) == 2

    # Cards of this kind forget over a reboot which mode was asked for.
    static(scenario, nodes="2xH100-80GB")


def test_without_the_policy_no_node_is_rebooted(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        no_reset(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        history = History(lab)
        await lab.label("node-1", layout="all-1g.5gb")
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[:2] == ("False", "ResetRequired"), "it has failed")
        assert "reboot the node" in lab.condition("GpuMigLayoutApplied")[2]
        await lab.clock.sleep(REBOOT_TIMEOUT)
        assert (len(history.boots), history.states) == (1, ["pending", "failed"])

    static(scenario, nodes="2xA100-40GB")


def test_a_reboot_does_not_bring_about_a_layout_that_was_taken_back(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        machine = no_reset(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        await lab.label("node-1", layout="all-1g.5gb")
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[:2] == ("False", "ResetRequired"), "it has failed")
        await lab.label("node-1", layout="all-disabled")
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[0] == "True", "that is in force")
        await rebooted(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        assert not any(each.mig_enabled or each.mig_pending for each in machine.devices())

    static(scenario, nodes="2xA100-40GB")


# Reboots that somebody does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "slices"),
    [
        pytest.param("2xA100-40GB", "nvidia.com/mig-1g.5gb", id="mode is kept", marks=pytest.mark.soak),
        pytest.param("2xH100-80GB", "nvidia.com/mig-1g.10gb", id="mode is lost too"),
    ],
)
def test_a_layout_is_made_anew_and_its_pods_are_replaced(static: Callable[..., None], nodes: str, slices: str) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout=f"all-{slices.removeprefix('nvidia.com/mig-')}")
        await lab.becomes({slices: 14})
        uuids = set(lab.mig_uuids())
        for number in range(14):
            await lab.create_owned(f"s{number}", {slices: 1})
        await lab.until(lambda: all(lab.ready_of(f"s{number}") for number in range(14)), "every slice is held")
        before = {lab.ready_of(f"s{number}") for number in range(14)}
        await rebooted(lab)
        # Kubelet meets its pods before the agent has registered anything.
        await lab.until(lambda: all(lab.phase(name) == "Failed" for name in before), "kubelet has refused the pods")
        assert {lab.existing_pod(name).status.reason for name in before} == {"UnexpectedAdmissionError"}
        await lab.until(lambda: all(lab.ready_of(f"s{number}") for number in range(14)), "every slice is held again")
        assert set(lab.mig_uuids()) == uuids
        held = [uuid for number in range(14) for uuid in lab.devices(lab.ready_of(f"s{number}"))]
        assert sorted(held) == sorted(uuids)
        assert lab.gpus() == {slices: 14}
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied")[0] == "True", "the layout is in force")

    static(scenario, nodes=nodes)


def test_a_card_that_was_lost_is_back(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes({"nvidia.com/gpu": 2})
        machine = lab.machine()
        machine.lose(machine.uuids()[0])
        await lab.until(lambda: lab.condition("GpuHealthy")[0] == "False", "the loss is told")
        await lab.becomes({"nvidia.com/gpu": 1})
        await rebooted(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        await lab.until(lambda: lab.condition("GpuHealthy")[0] == "True", "the return is told")

    static(scenario, nodes="2xA100-40GB")


def test_shared_cards_are_shared_again(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        replicas = "{name: nvidia.com/gpu, replicas: 4}"
        profile = f"version: v1\nsharing: {{mps: {{resources: [{replicas}]}}}}\n"
        await lab.config_map("sharing-profiles", {"mps-4": profile})
        await lab.label("node-1", profile="mps-4")
        await lab.becomes({"nvidia.com/gpu": 8})
        await lab.create_owned("app", {"nvidia.com/gpu": 1})
        await lab.until(lambda: lab.ready_of("app"), "it runs")
        first = lab.ready_of("app")
        await rebooted(lab)
        await lab.until(lambda: lab.ready_of("app") not in {"", first}, "its successor runs")
        await lab.becomes({"nvidia.com/gpu": 8})

    static(scenario, nodes="2xA100-40GB")


def test_slices_on_demand_are_cut_again_for_the_successors_of_their_pods(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for number in range(4):
            await lab.create_owned(f"s{number}", {"nvidia.com/mig-3g.20gb": 1})
        await lab.until(lambda: all(lab.ready_of(f"s{number}") for number in range(4)), "all run")
        before = {lab.ready_of(f"s{number}") for number in range(4)}
        offered = lab.gpus()
        await rebooted(lab)
        await lab.until(
            lambda: all(lab.ready_of(f"s{number}") not in {"", *before} for number in range(4)), "their successors run"
        )
        for number in range(4):
            await lab.until(lambda: lab.settled(lab.ready_of(f"s{number}")), "it is recorded")  # noqa: B023
        assert len(lab.hardware()) == len(lab.results()) == 4
        assert {uuid for number in range(4) for uuid in lab.devices(lab.ready_of(f"s{number}"))} == set(lab.mig_uuids())
        for number in range(4):
            await lab.delete_owned(f"s{number}")
        await lab.empty()
        await lab.until(lambda: lab.hardware() == [], "the cards are empty")
        assert lab.gpus() == offered

    in_lab(scenario, nodes="2xA100-40GB")
