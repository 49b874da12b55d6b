"""Allocate's answers, word for word as NVIDIA's device plugin gives them, for every device list strategy."""

from pathlib import PurePosixPath
from uuid import UUID

import msgspec
import pytest

from tessera.agent.base.settings import ContainerEdits
from tessera.agent.sharing.allocate_response import (
    CDI_KIND,
    AllocateOptions,
    build_allocation,
    set_name,
)
from tessera.api.sharing.devices import AdvertisedDevice, SharingKind
from tessera.api.sharing.profile import AllocationPolicy, Flags
from tessera.kubelet.interfaces import ContainerAllocateResponse, DeviceNode, Mount
from tessera.nvml.interface import DeviceFile

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
NAMES = "k8s.device-plugin.nvidia.com/gpu="
A, B = "GPU-a", "GPU-b"
M, N = "MIG-m", "MIG-n"


def whole(uuid: str, index: int) -> AdvertisedDevice:
    return AdvertisedDevice(id=uuid, uuid=uuid, gpu=uuid, index=str(index))


def share(uuid: str, index: str, number: int, gpu: str = "") -> AdvertisedDevice:
    kind = SharingKind.TIME_SLICING
    return AdvertisedDevice(id=f"{uuid}::{number}", uuid=uuid, gpu=gpu or uuid, index=index, replicas=4, kind=kind)


def mig(uuid: str, index: str) -> AdvertisedDevice:
    return AdvertisedDevice(id=uuid, uuid=uuid, gpu=A, index=index, profile="1g.5gb")


ONE, TWO = (whole(A, 0),), (whole(A, 0), whole(B, 1))
#: Three shares of two cards: each card stands once in the answer, in the order in which kubelet named them.
SHARES = (share(B, "1", 2), share(A, "0", 0), share(B, "1", 0))
MIGS = (mig(M, "0:0"), mig(N, "0:3"))
FOLDER = "/var/run/nvidia-container-devices"


def mounted(*ids: str) -> tuple[Mount, ...]:
    return tuple(Mount(container_path=f"{FOLDER}/{each}", host_path="/dev/null", read_only=False) for each in ids)


def told(
    devices: tuple[AdvertisedDevice, ...], *strategies: str, uuids: bool = True, resource: str = GPU
) -> ContainerAllocateResponse:
    options = AllocateOptions(list_strategies=strategies, ids_are_uuids=uuids)
    return build_allocation(resource, devices, options, files={})


@pytest.mark.parametrize(
    ("devices", "uuids", "ids"),
    [
        pytest.param(ONE, True, [A], id="a card"),
        pytest.param(TWO, True, [A, B], id="two cards"),
        pytest.param(TWO, False, ["0", "1"], id="two cards by index"),
        pytest.param(SHARES, True, [B, A], id="shares"),
        pytest.param(SHARES, False, ["1", "0"], id="shares by index"),
        pytest.param(MIGS, True, [M, N], id="MIG devices"),
        pytest.param(MIGS, False, ["0:0", "0:3"], id="MIG devices by index"),
        pytest.param((share(M, "0:0", 1, A), share(M, "0:0", 0, A)), True, [M], id="shares of a MIG device"),
    ],
)
class TestEachStrategy:
    """Responses of each device list strategy alone."""

    def test_envvar(self, devices: tuple[AdvertisedDevice, ...], uuids: bool, ids: list[str]) -> None:
        assert told(devices, "envvar", uuids=uuids) == ContainerAllocateResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}
        )

    def test_volume_mounts(self, devices: tuple[AdvertisedDevice, ...], uuids: bool, ids: list[str]) -> None:
        expected = ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": FOLDER}, mounts=mounted(*ids))
        assert told(devices, "volume-mounts", uuids=uuids) == expected

    def test_cdi_cri(self, devices: tuple[AdvertisedDevice, ...], uuids: bool, ids: list[str]) -> None:
        found = told(devices, "cdi-cri", uuids=uuids)
        assert found == ContainerAllocateResponse(cdi_devices=found.cdi_devices)
        assert found.cdi_devices == (*(NAMES + each for each in ids), *its_set(devices))

    def test_cdi_annotations(self, devices: tuple[AdvertisedDevice, ...], uuids: bool, ids: list[str]) -> None:
        found = told(devices, "cdi-annotations", uuids=uuids)
        ((key, value),) = found.annotations.items()
        assert found == ContainerAllocateResponse(annotations=found.annotations)
        assert value == ",".join((*(NAMES + each for each in ids), *its_set(devices)))
        prefix, _, answer_id = key.rpartition("_")
        assert prefix == "cdi.k8s.io/nvidia-device-plugin"
        assert UUID(answer_id)


def its_set(devices: tuple[AdvertisedDevice, ...]) -> list[str]:
    """One more name stands for several devices together; that is Tessera's, all else is upstream's."""
    return [NAMES + set_name(each.id for each in devices)] if len({each.uuid for each in devices}) > 1 else []


def test_where_a_container_may_have_other_resources_too_one_device_has_a_set_as_well() -> None:
    found = build_allocation(GPU, ONE, AllocateOptions(), files={}, joint=True)
    assert found == ContainerAllocateResponse(cdi_devices=(NAMES + A, NAMES + set_name([A])))
    by_env = build_allocation(GPU, ONE, AllocateOptions(list_strategies=("envvar",)), files={}, joint=True)
    assert by_env == ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": A})


def test_the_kind_is_that_of_the_device_plugin() -> None:
    assert f"{CDI_KIND}=" == NAMES


def test_all_four_together() -> None:
    found = told(ONE, "envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
    assert found.envs == {"NVIDIA_VISIBLE_DEVICES": FOLDER}
    assert found.mounts == mounted(A)
    assert list(found.annotations.values()) == [NAMES + A]
    assert found.cdi_devices == (NAMES + A,)


def test_nothing_asked_for_is_nothing_told() -> None:
    assert told((), "cdi-annotations", "cdi-cri") == ContainerAllocateResponse()


def test_another_prefix_of_annotations() -> None:
    options = AllocateOptions(list_strategies=("cdi-annotations",), cdi_annotation_prefix="custom.cdi.k8s.io/")
    (key,) = build_allocation(GPU, ONE, options, files={}).annotations
    assert key.startswith("custom.cdi.k8s.io/nvidia-device-plugin_")


def test_answers_for_two_resources_of_one_container_have_different_keys() -> None:
    one, other = told(ONE, "cdi-annotations"), told(MIGS[:1], "cdi-annotations", resource=MIG)
    assert one.annotations.keys().isdisjoint(other.annotations)
    assert told(ONE, "cdi-annotations") == one


FILES = {
    A: [
        DeviceFile(path="/dev/nvidiactl", major=195, minor=255),
        DeviceFile(path="/dev/nvidia0", major=195, minor=0),
        DeviceFile(path="/dev/nvidia-uvm", major=510, minor=0),
        DeviceFile(path="/dev/nvidia-uvm-tools", major=510, minor=1),
        DeviceFile(path="/dev/nvidia-modeset", major=195, minor=254),
    ],
    M: [
        DeviceFile(path="/dev/nvidiactl", major=195, minor=255),
        DeviceFile(path="/dev/nvidia0", major=195, minor=0),
        DeviceFile(path="/dev/nvidia-caps/nvidia-cap30", major=511, minor=30),
        DeviceFile(path="/dev/nvidia-caps/nvidia-cap31", major=511, minor=31),
    ],
}


def nodes(root: str, *paths: str) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(container_path=path, host_path=root + path) for path in paths)


def test_device_nodes_are_passed_the_drivers_first() -> None:
    options = AllocateOptions(list_strategies=("envvar",), pass_device_specs=True)
    control = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
    assert build_allocation(GPU, ONE, options, files=FILES).device_nodes == nodes("", *control, "/dev/nvidia0")


def test_device_nodes_of_a_mig_device_are_its_cards_and_its_two_capabilities() -> None:
    options = AllocateOptions(
        list_strategies=("envvar",), pass_device_specs=True, dev_root=PurePosixPath("/run/nvidia/driver")
    )
    caps = ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")
    found = build_allocation(MIG, MIGS[:1], options, files=FILES).device_nodes
    assert found == nodes("/run/nvidia/driver", "/dev/nvidiactl", "/dev/nvidia0", *caps)


@pytest.mark.parametrize(("strategies", "passed"), [(("cdi-cri",), False), (("cdi-cri", "envvar"), True)])
def test_device_nodes_are_left_to_cdi_where_nothing_else_is_told(strategies: tuple[str, ...], passed: bool) -> None:
    options = AllocateOptions(list_strategies=strategies, pass_device_specs=True)
    assert bool(build_allocation(GPU, ONE, options, files=FILES).device_nodes) is passed


def test_clients_of_mps_get_its_folders_whatever_the_strategy() -> None:
    pipe = Mount(container_path="/mps/p", host_path="/run/nvidia/mps/p", read_only=False)
    edits = ContainerEdits(envs={"CUDA_MPS_PIPE_DIRECTORY": "/mps/p"}, mounts=(pipe,))
    devices = (share(A, "0", 1),)
    by_cdi = build_allocation(SHARED, devices, AllocateOptions(), files={}, edits=edits)
    assert by_cdi == ContainerAllocateResponse(envs=edits.envs, mounts=(pipe,), cdi_devices=(NAMES + A,))
    by_env = build_allocation(SHARED, devices, AllocateOptions(list_strategies=("envvar",)), files={}, edits=edits)
    assert by_env == ContainerAllocateResponse(envs={**edits.envs, "NVIDIA_VISIBLE_DEVICES": A}, mounts=(pipe,))


def test_imex_channels_are_told_beside_the_devices() -> None:
    options = AllocateOptions(list_strategies=("envvar",), imex_channels=(0,))
    assert build_allocation(GPU, ONE, options, files={}).envs == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "NVIDIA_IMEX_CHANNELS": "0",
    }
    options = AllocateOptions(list_strategies=("volume-mounts",), imex_channels=(0,))
    found = build_allocation(GPU, ONE, options, files={})
    assert found == ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": FOLDER}, mounts=mounted(A, "imex/0"))
    by_cdi = build_allocation(GPU, ONE, AllocateOptions(imex_channels=(0,)), files={})
    assert by_cdi == ContainerAllocateResponse(cdi_devices=(NAMES + A,))


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"])
def test_what_the_runtime_gives_beside_cards_is_asked_for_whatever_the_strategy(strategy: str) -> None:
    options = AllocateOptions(list_strategies=(strategy,), extras=("gdrcopy", "gds", "mofed"))
    plain = build_allocation(GPU, ONE, AllocateOptions(list_strategies=(strategy,)), files={})
    found = build_allocation(GPU, ONE, options, files={})
    asked = {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}
    assert dict(found.envs) == {**plain.envs, **asked}
    assert msgspec.structs.replace(found, envs=plain.envs) == plain


def test_a_set_goes_by_the_same_name_in_any_order() -> None:
    assert set_name([A, B]) == set_name([B, A]) != set_name([A, M])


def test_what_a_profile_sets_goes_before_the_installation() -> None:
    installed = AllocateOptions(list_strategies=("cdi-cri",), pass_device_specs=True)
    flags = Flags(
        device_list_strategies=("envvar",),
        device_ids_are_uuids=False,
        driver_root="/run/nvidia/driver",
        allocation_policy=AllocationPolicy.PACKED,
    )
    assert installed.with_flags(flags) == AllocateOptions(
        list_strategies=("envvar",),
        ids_are_uuids=False,
        pass_device_specs=True,
        dev_root=PurePosixPath("/run/nvidia/driver"),
        allocation_policy=AllocationPolicy.PACKED,
    )
    assert installed.with_flags(Flags()) == installed
