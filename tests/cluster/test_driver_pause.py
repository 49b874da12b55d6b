"""A node whose driver is replaced while its cluster goes on: nothing is lost, nothing is given out meanwhile."""

import json
from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.nodes.node_marks import PAUSE_LABEL, PAUSED
from tessera.kube.resources import NODES, PODS

READY = "GpuNodeReady"
MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
SLICE = {"nvidia.com/mig-3g.20gb": 1}
CARD = {"nvidia.com/gpu": 1}


async def pause(lab: VirtualLab, *, paused: bool = True, node: str = "node-1") -> None:
    label = {PAUSE_LABEL: PAUSED if paused else "true"}
    await lab.client.merge_patch(NODES, node, {"metadata": {"labels": label}})


async def tells(lab: VirtualLab, reason: str, node: str = "node-1") -> None:
    await lab.until(lambda: lab.condition(READY, node)[1] == reason, f"{node} tells {reason}")


def version(lab: VirtualLab, node: str = "node-1") -> str:
    return str(lab.existing_node(node).metadata.labels["nvidia.com/cuda.driver-version.full"])


def recorded(lab: VirtualLab) -> Any:
    """The MPS daemons that the one agent has noted."""
    folder = lab.cluster.options.cdi
    assert folder is not None
    (record,) = folder.rglob("mps.json")
    return json.loads(record.read_bytes().splitlines()[0])["daemons"]  # its checksum follows


async def agents(lab: VirtualLab) -> list[tuple[str, int]]:
    """The agents' pods, and how often their containers were started again."""
    found = await lab.client.list(PODS, "tessera-system", label_selector="app.kubernetes.io/name=tessera-agent")
    return sorted(
        (pod.metadata.name, sum(each.restart_count for each in pod.status.container_statuses)) for pod in found.items
    )


def test_a_node_with_a_driver_of_its_own_says_that_its_cards_are_advertised(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await tells(lab, "Advertised")
        assert lab.condition(READY)[0] == "True"
        assert lab.condition("GpuSharingApplied")[0] == "True"

    in_lab(scenario, nodes="A100-40GB")


def test_cards_go_at_once_and_come_back_with_the_next_driver_for_the_pods_that_waited(
    in_lab: InLab,
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        before = await agents(lab)
        await lab.becomes({"nvidia.com/gpu": 2})
        began = lab.clock.monotonic()
        await pause(lab)
        await lab.becomes({})
        await tells(lab, "PausedForDriver")
        assert lab.clock.monotonic() - began < 2.0
        machine = lab.machine()
        machine.unload_driver()
        await lab.create("waits", CARD)
        await lab.clock.sleep(120.0)
        assert lab.phase("waits") == "Pending"
        machine.load_driver("999.1")
        await pause(lab, paused=False)
        await lab.running("waits")
        await tells(lab, "Advertised")
        await lab.until(lambda: version(lab) == "999.1", "the node's labels are of the new driver")
        assert await agents(lab) == before

    in_lab(scenario, nodes="2xA100-40GB", mig_config="")


def test_mps_daemons_end_before_their_driver_goes_and_serve_after_it(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.config_map("sharing-profiles", {"mps-4": MPS})
        await lab.label("node-1", profile="mps-4")
        await lab.becomes({"nvidia.com/gpu": 4})
        assert recorded(lab)
        await pause(lab)
        await tells(lab, "PausedForDriver")
        assert not recorded(lab)
        await pause(lab, paused=False)
        await lab.becomes({"nvidia.com/gpu": 4})

    in_lab(scenario, nodes="A100-40GB", own=True, mig_config="")


def test_pods_keep_their_slices_over_a_pause_in_which_the_driver_stays(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("runs", SLICE)
        await lab.running("runs")
        cut, devices = lab.hardware(), lab.devices("runs")
        await pause(lab)
        await tells(lab, "PausedForDriver")
        await lab.create("waits", SLICE)
        await lab.clock.sleep(60.0)
        assert lab.hardware() == cut
        await pause(lab, paused=False)
        await lab.running("runs", "waits")
        assert lab.devices("runs") == devices
        for name in ("runs", "waits"):
            await lab.delete(name)
        await lab.empty()
        assert lab.hardware() == []

    in_lab(scenario, nodes="A100-40GB")
