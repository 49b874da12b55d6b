"""The MPS daemons that an offer needs."""

from pathlib import Path

import pytest

from tessera.agent.base.settings import ServicePlan
from tessera.agent.mps.state import MpsPaths, container_edits
from tessera.agent.sharing.strategies import StrategyImpossible, plan_services
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement, GpuDescription, SharingKind
from tessera.api.sharing.profile import ClientShare, MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.nvml.interface import GpuInfo, GpuUuid


def card(number: int, memory_mib: int = 40960, capability: tuple[int, int] = (8, 0), *, lost: bool = False) -> GpuInfo:
    return GpuInfo(
        uuid=GpuUuid(f"GPU-{number}"),
        index=number,
        minor=number,
        name="NVIDIA A100-SXM4-40GB",
        memory_mib=memory_mib,
        pci_bus_id=f"00000000:{number:02X}:00.0",
        pci_device_id="0x20B010DE",
        compute_capability=capability,
        lost=lost,
    )


BOTH = {"GPU-0": card(0), "GPU-1": card(1)}


def offer(text: str, cards: int = 2) -> Advertisement:
    gpus = [
        GpuDescription(uuid=f"GPU-{n}", index=n, product="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0))
        for n in range(cards)
    ]
    return make_advertisement(gpus, parse_profile(text), MigStrategy.MIXED)


def shares(uuid: str, replicas: int) -> Advertisement:
    devices = tuple(
        AdvertisedDevice(id=f"{uuid}::{n}", uuid=uuid, gpu=uuid, index="0", replicas=replicas, kind=SharingKind.MPS)
        for n in range(replicas)
    )
    return Advertisement(resources={"nvidia.com/gpu": AdvertisedResource(name="nvidia.com/gpu", devices=devices)})


def test_each_client_gets_an_equal_share_of_each_card() -> None:
    text = "{version: v1, sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}}"

    plans = plan_services(offer(text), BOTH)

    share = ClientShare(memory_mib=10240, thread_percent=25)
    assert plans == {"nvidia.com/gpu.shared": ServicePlan({"GPU-0": share, "GPU-1": share}, 4)}


def test_time_slices_and_whole_cards_need_no_daemon() -> None:
    text = "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, devices: [0]}]}}}"

    assert plan_services(offer(text), BOTH) == {}


def test_only_the_cards_that_are_shared_are_served() -> None:
    text = "{version: v1, sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: [1]}]}}}"

    assert plan_services(offer(text), BOTH)["nvidia.com/gpu"].cards == ("GPU-1",)


def test_the_most_divided_card_decides_the_thread_share() -> None:
    text = """
    version: v1
    sharing:
      mps:
        resources:
        - {name: nvidia.com/gpu, replicas: 2, devices: [0]}
        - {name: nvidia.com/gpu, replicas: 8, devices: [1]}
    """

    plan = plan_services(offer(text), BOTH)["nvidia.com/gpu"]

    assert [share.memory_mib for share in plan.devices.values()] == [20480, 5120]
    assert (plan.thread_percent, plan.replicas) == (12, 8)


def test_a_card_that_is_lost_or_not_there_gets_no_daemon() -> None:
    text = "{version: v1, sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}}"

    assert plan_services(offer(text), {"GPU-0": card(0, lost=True), "GPU-1": card(1)})["nvidia.com/gpu"].cards == (
        "GPU-1",
    )
    assert plan_services(offer(text), {}) == {}


@pytest.mark.parametrize(("capability", "most"), [((6, 1), 16), ((7, 0), 48), ((7, 5), 48), ((9, 0), 48)])
def test_a_card_serves_as_many_clients_as_its_compute_capability_allows(capability: tuple[int, int], most: int) -> None:
    cards = {"GPU-0": card(0, 16384, capability)}

    assert plan_services(shares("GPU-0", most), cards)["nvidia.com/gpu"].replicas == most
    with pytest.raises(StrategyImpossible, match=f"{most + 1} shares; MPS serves {most} clients"):
        plan_services(shares("GPU-0", most + 1), cards)


def test_a_card_too_small_for_its_shares_is_refused() -> None:
    with pytest.raises(StrategyImpossible, match="has 3 MiB, too little for 4 shares"):
        plan_services(shares("GPU-0", 4), {"GPU-0": card(0, 3)})


def test_a_container_sees_the_pipe_of_its_resource_and_the_shared_memory_and_nothing_else() -> None:
    edits = container_edits("nvidia.com/gpu.shared", MpsPaths(Path("/run/nvidia/mps")))

    assert edits.envs == {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe"}
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in edits.mounts] == [
        ("/run/nvidia/mps/nvidia.com/gpu.shared/pipe", "/mps/nvidia.com/gpu.shared/pipe", False),
        ("/run/nvidia/mps/shm", "/dev/shm", False),
    ]
