"""Nodes whose cards are not all cut on demand: profiles and layouts by label, every kind beside every other."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.doctor.manifests import deploy_folder
from tessera.kube.resources import DAEMONSETS
from tessera.nvml.interface import CardAttributes, ComputeMode, GpuEventKind
from tessera.nvml.simulated.machine_state import SimEvent
from tessera_lab.installation.install import apply_manifests

WHOLE = {"nvidia.com/gpu": 4}


def profile(block: str, *resources: str, head: str = "") -> str:
    """A sharing profile; ``resources`` are the entries in YAML's flow style."""
    return f"version: v1\n{head}sharing: {{{block}: {{resources: [{', '.join(resources)}]}}}}\n"


PROFILES = {
    "slice-4": profile("timeSlicing", "{name: nvidia.com/gpu, replicas: 4}"),
    "renamed": "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: "
    "[{name: nvidia.com/gpu, replicas: 10}]}}\n",
    "mps-4": profile("mps", "{name: nvidia.com/gpu, replicas: 4}"),
    "three-kinds": (
        "version: v1\nsharing:\n"
        "  timeSlicing: {resources: [{name: nvidia.com/gpu, rename: gpu.slice, replicas: 4, devices: [0]}]}\n"
        "  mps: {resources: [{name: nvidia.com/gpu, rename: gpu.mps, replicas: 2, devices: [1]}]}\n"
    ),
    "slices-of-slices": profile("timeSlicing", "{name: nvidia.com/mig-1g.5gb, rename: mig-1g.5gb.shared, replicas: 2}"),
    "single": "version: v1\nflags: {migStrategy: single}\n",
    "typo": profile("timeSlicing", "{name: nvidia.com/gpu, replica: 4}"),
}
LAYOUTS = """
version: v1
mig-configs:
  2x2g.10gb-3x1g.5gb:
  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3, 2g.10gb: 2}}
  last-card:
  - {devices: [0, 1, 2], mig-enabled: false}
  - {devices: [3], mig-enabled: true, mig-devices: {3g.20gb: 2}}
  dynamic-half:
  - {devices: [0, 1], mig-enabled: true, mig-devices: {}}
  - {devices: [2, 3], mig-enabled: false}
"""


@pytest.fixture
def static(in_lab: InLab) -> Callable[..., None]:
    """Runs a scenario in a cluster whose nodes have no layout, with the profiles and layouts of this file."""

    def run(scenario: Callable[[Any], Any], nodes: str = "4xA100-40GB", **options: Any) -> None:
        async def with_files(lab: VirtualLab) -> None:
            await lab.config_map("sharing-profiles", PROFILES)
            await lab.config_map("mig-layouts", {"config.yaml": LAYOUTS})
            await scenario(lab)

        in_lab(with_files, nodes=nodes, mig_config="", **options)

    return run


def labels(lab: VirtualLab, node: str = "node-1") -> dict[str, str]:
    found: dict[str, str] = lab.existing_node(node).metadata.labels
    return found


def test_shares_without_a_name_of_their_own_are_told_by_the_product(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes(WHOLE)
        await lab.label("node-1", profile="slice-4")
        await lab.becomes({"nvidia.com/gpu": 16})
        await lab.until(
            lambda: labels(lab)["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED", "the product says SHARED"
        )
        assert (labels(lab)["nvidia.com/gpu.count"], labels(lab)["nvidia.com/gpu.replicas"]) == ("4", "4")
        await lab.label("node-1", profile=None)
        await lab.becomes(WHOLE)

    static(scenario)


def test_a_layout_may_leave_some_cards_to_slices_on_demand(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="dynamic-half")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 2, "two cards are cut on demand")
        assert lab.gpus()["nvidia.com/gpu"] == 2
        await lab.create("slice", {"nvidia.com/mig-3g.20gb": 1})
        await lab.create("card", {"nvidia.com/gpu": 2})
        await lab.running("slice", "card")
        uuids = lab.machine().uuids()
        assert sorted(lab.devices("card")) == sorted(uuids[2:])
        ((gpu, cut, _),) = lab.hardware()
        assert cut == "3g.20gb"
        assert gpu in uuids[:2]

    static(scenario)


def test_cards_that_were_cut_on_demand_are_not_offered_whole_where_mig_mode_stays_on(
    static: Callable[..., None],
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="dynamic-half")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 2, "two cards are cut on demand")
        await lab.label("node-1", layout=None)
        await lab.becomes({"nvidia.com/gpu": 2})
        await lab.clock.sleep(60)
        assert lab.gpus() == {"nvidia.com/gpu": 2}

    static(scenario)


def test_a_slice_of_a_layout_and_a_card_of_two_models_are_seen_by_their_containers(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="2x2g.10gb-3x1g.5gb")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-1g.5gb") == 3, "the A100 is cut")
        assert lab.gpus() == {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 3, "nvidia.com/mig-2g.10gb": 2}
        await lab.create("two", {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1})
        await lab.running("two")
        assert len(lab.devices("two")) == 2

    static(scenario, nodes="1xA100-40GB+1xT4")


def test_a_resource_that_is_offered_no_more_disappears_when_kubelet_has_forgotten_it(
    static: Callable[..., None],
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", profile="renamed")
        await lab.becomes({"nvidia.com/gpu.shared": 40})
        node = lab.existing_node
        await lab.until(lambda: "nvidia.com/gpu" not in node("node-1").status.capacity, "kubelet's 0 is gone")
        await lab.clock.sleep(600)
        assert "nvidia.com/gpu" not in node("node-1").status.allocatable

    static(scenario)


def test_a_bad_profile_keeps_the_old_one_also_when_the_agent_starts_again(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", profile="renamed")
        await lab.becomes({"nvidia.com/gpu.shared": 40})
        await lab.label("node-1", profile="typo")
        await lab.until(lambda: lab.condition("GpuSharingApplied")[0] == "False", "the condition says so")
        assert "replica: unknown; did you mean replicas?" in lab.condition("GpuSharingApplied")[2]
        await lab.kill("tessera-agent")
        await lab.until(lambda: lab.gpus() == {}, "the agent is gone")
        await lab.becomes({"nvidia.com/gpu.shared": 40})
        await lab.config_map("sharing-profiles", PROFILES | {"typo": PROFILES["slice-4"]})
        await lab.becomes({"nvidia.com/gpu": 16})
        await lab.until(lambda: lab.condition("GpuSharingApplied")[0] == "True", "the condition says so")

    static(scenario)


def test_a_card_that_an_init_container_has_is_held_as_long_as_it_runs(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
        first = {"name": "init", "image": "busybox", "command": ["sleep", "300"], **limits}
        await lab.create("p", {}, initContainers=[first])
        await lab.clock.sleep(60)
        await lab.label("node-1", profile="renamed")
        await lab.becomes({"nvidia.com/gpu.shared": 30})
        await lab.clock.sleep(60)
        assert lab.gpus() == {"nvidia.com/gpu.shared": 30}
        await lab.becomes({"nvidia.com/gpu.shared": 40})
        await lab.running("p")

    static(scenario)


def test_a_card_that_an_init_container_has_is_held_also_by_an_agent_that_starts_meanwhile(
    static: Callable[..., None],
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
        first = {"name": "init", "image": "busybox", "command": ["sleep", "300"], **limits}
        await lab.create("p", {}, initContainers=[first])
        await lab.clock.sleep(60)
        await lab.kill("tessera-agent")
        await lab.until(lambda: lab.gpus() == {}, "the agent is gone")
        await lab.becomes(WHOLE)
        await lab.label("node-1", profile="renamed")
        await lab.becomes({"nvidia.com/gpu.shared": 30})
        await lab.clock.sleep(60)
        assert lab.gpus() == {"nvidia.com/gpu.shared": 30}
        await lab.becomes({"nvidia.com/gpu.shared": 40})

    static(scenario)


def test_mps_takes_a_card_only_when_nobody_has_a_time_slice_of_it(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", profile="slice-4")
        await lab.becomes({"nvidia.com/gpu": 16})
        await lab.create("p", {"nvidia.com/gpu": 1})
        await lab.running("p")
        (card,) = lab.devices("p")
        machine = lab.machine()
        await lab.label("node-1", profile="mps-4")
        await lab.becomes({"nvidia.com/gpu": 12})
        await lab.clock.sleep(60)
        assert machine.compute_mode(card) is ComputeMode.DEFAULT
        await lab.delete("p")
        await lab.becomes({"nvidia.com/gpu": 16})
        assert machine.compute_mode(card) is ComputeMode.EXCLUSIVE_PROCESS

    static(scenario)


def test_mps_that_is_wanted_for_a_moment_touches_no_card_that_a_pod_has_whole(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("p", {"nvidia.com/gpu": 4})
        await lab.running("p")
        machine = lab.machine()
        taken = []
        machine.set_compute_mode = lambda *args: taken.append(args)  # type: ignore[method-assign]
        for _ in range(4):
            await lab.label("node-1", profile="mps-4")
            await lab.clock.sleep(0.3)
            await lab.label("node-1", profile=None)
            await lab.clock.sleep(0.3)
        assert taken == []

    static(scenario)


def test_an_error_of_a_card_takes_its_shares_out_until_the_card_has_proven_itself(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", profile="slice-4")
        await lab.becomes({"nvidia.com/gpu": 16})
        machine = lab.machine()
        machine.report(SimEvent(GpuEventKind.XID, machine.uuids()[2], xid=74))
        await lab.becomes({"nvidia.com/gpu": 12})
        await lab.until(lambda: lab.condition("GpuHealthy")[:2] == ("False", "CardUnhealthy"), "the condition says so")
        await lab.becomes({"nvidia.com/gpu": 16})
        machine.report(SimEvent(GpuEventKind.XID, machine.uuids()[2], xid=13))
        await lab.clock.sleep(60)
        assert lab.gpus() == {"nvidia.com/gpu": 16}

    static(scenario)


def test_a_node_goes_from_whole_cards_to_slices_on_demand_to_a_layout_and_back(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("card", {"nvidia.com/gpu": 1})
        await lab.running("card")
        await lab.label("node-1", layout="dynamic")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 3, "the three idle cards are joined")
        await lab.create("slice", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("slice", "card")
        await lab.delete("card")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 4, "the fourth follows")
        await lab.label("node-1", layout="2x2g.10gb-3x1g.5gb")
        await lab.until(lambda: len(lab.hardware()) == 1 + 3 * 5, "three cards are laid out")
        await lab.until(lambda: lab.condition("GpuSharingApplied")[0] == "False", "one name cannot mean two things")
        assert "dynamic-slice" not in lab.existing_node("node-1").metadata.annotations["tessera.dev/offers"]
        assert lab.phase("slice") == "Running"
        await lab.delete("slice")
        await lab.becomes({"nvidia.com/mig-1g.5gb": 12, "nvidia.com/mig-2g.10gb": 8})
        await lab.label("node-1", layout="all-disabled")
        await lab.becomes(WHOLE)

    static(scenario)


def test_an_agent_that_finds_no_file_of_its_own_leaves_cards_alone_that_pods_hold(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("card", {"nvidia.com/gpu": 1})
        await lab.running("card")
        (held,) = lab.devices("card")
        assert lab.cluster.options.cdi is not None
        (lab.cluster.options.cdi / "node-1-state" / "owners.json").write_text("")
        await lab.kill("tessera-agent")
        await lab.label("node-1", layout="dynamic")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 3, "the three idle cards are joined")
        await lab.clock.sleep(60)
        assert [card.uuid for card in lab.machine().devices() if not card.mig_enabled] == [held]
        await lab.delete("card")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 4, "the fourth follows")

    static(scenario)


def test_what_takes_the_place_of_an_evicted_pod_is_not_sent_to_the_node_that_gives_it_up(
    static: Callable[..., None],
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await _let_agents_evict(lab)
        await lab.becomes(WHOLE)
        await lab.create("first", {"nvidia.com/gpu": 1})
        await lab.running("first")
        await lab.label("node-1", layout="all-1g.5gb")
        await lab.until(lambda: lab.phase("first") != "Running", "it is evicted")
        await lab.create("second", {"nvidia.com/gpu": 1})
        await lab.becomes({"nvidia.com/mig-1g.5gb": 28})
        assert lab.phase("second") == "Pending"

    static(scenario, publish_every=10.0)


async def _let_agents_evict(lab: VirtualLab) -> None:
    """Adds the right and the argument of ``tessera install --mig-evict``."""
    await apply_manifests(lab.client, yaml.safe_load_all((deploy_folder() / "options/evict.yaml").read_text()))
    found = await lab.client.get(DAEMONSETS.as_dicts(), "tessera-agent", "tessera-system")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["args"].append("--mig-evict")
    spec = {"template": {"spec": {"containers": [container]}}}
    await lab.client.merge_patch(DAEMONSETS.as_dicts(), "tessera-agent", {"spec": spec}, "tessera-system")
    while not await _rolled_out(lab):
        await lab.clock.sleep(1.0)


async def _rolled_out(lab: VirtualLab) -> bool:
    """True if every agent runs with the newest arguments; pods that come before may meet a node without one."""
    found = await lab.client.get(DAEMONSETS.as_dicts(), "tessera-agent", "tessera-system")
    status, wanted = found["status"], len(lab.cluster.nodes)
    seen = status.get("observedGeneration") == found["metadata"]["generation"]
    return seen and (status.get("updatedNumberScheduled"), status.get("numberReady")) == (wanted, wanted)


def test_a_pod_that_came_before_any_node_was_cut_runs_when_a_layout_has_its_slice(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("early", {"nvidia.com/mig-2g.10gb": 1})
        await lab.until(lambda: lab.events_of("early", "SliceWaiting"), "it waits for a node that cuts on demand")
        await lab.label("node-1", layout="2x2g.10gb-3x1g.5gb")
        await lab.running("early")
        assert lab.events_of("early", "SliceFixed")
        assert len(lab.hardware()) == 4 * 5

    static(scenario)


def test_a_pod_stays_with_slices_on_demand_while_a_node_can_make_them(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="dynamic")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 1, "the card is joined")
        await lab.create("all-of-it", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("all-of-it")
        await lab.create("waits", {"nvidia.com/mig-2g.10gb": 1})
        await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "it waits for room")
        await lab.label("node-2", layout="2x2g.10gb-3x1g.5gb")
        await lab.becomes({"nvidia.com/mig-1g.5gb": 3, "nvidia.com/mig-2g.10gb": 2}, "node-2")
        await lab.clock.sleep(60)
        assert lab.phase("waits") == "Pending"
        await lab.delete("all-of-it")
        await lab.running("waits")
        assert lab.existing_pod("waits").spec.node_name == "node-1"

    static(scenario, nodes="1xA100-40GB,1xA100-40GB")


def test_whole_cards_with_pods_become_slices_on_demand_each_when_its_pod_has_ended(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes(WHOLE)
        for name in ("one", "two"):
            await lab.create(name, {"nvidia.com/gpu": 1})
        await lab.running("one", "two")
        await lab.label("node-1", layout="dynamic")
        await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == 2, "two cards are joined")
        for name, cards in (("one", 3), ("two", 4)):
            await lab.delete(name)
            began = lab.clock.monotonic()
            await lab.until(lambda: lab.gpus().get("nvidia.com/mig-7g.40gb") == cards, "one more is joined")  # noqa: B023
            assert lab.clock.monotonic() - began < 5.0

    static(scenario)


def test_a_card_that_asks_for_a_reset_gets_it_when_its_pod_has_ended(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("card", {"nvidia.com/gpu": 1})
        await lab.running("card")
        machine = lab.machine()
        (gpu,) = lab.devices("card")
        machine.set_attributes(gpu, CardAttributes(recovery_action=None))  # a driver that gives no verdict of its own
        machine.report(SimEvent(GpuEventKind.XID, gpu, xid=48))
        await lab.becomes({"nvidia.com/gpu": 3})
        await lab.clock.sleep(600)
        assert lab.gpus() == {"nvidia.com/gpu": 3}
        await lab.delete("card")
        await lab.becomes({"nvidia.com/gpu": 4})

    static(scenario)


def test_a_slice_whose_pod_came_and_went_a_moment_ago_does_not_hold_a_layout_up(static: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="2x2g.10gb-3x1g.5gb")
        await lab.becomes({"nvidia.com/mig-1g.5gb": 12, "nvidia.com/mig-2g.10gb": 8})
        await lab.create("short", {"nvidia.com/mig-2g.10gb": 1})
        await lab.running("short")
        await lab.delete("short")
        began = lab.clock.monotonic()
        await lab.label("node-1", layout="all-1g.5gb")
        await lab.becomes({"nvidia.com/mig-1g.5gb": 28})
        assert lab.clock.monotonic() - began < 2.0

    static(scenario)
