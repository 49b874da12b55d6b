"""The GPUs that can be cut, as kubelet and the controller get them."""

from collections.abc import Collection

import msgspec
import pytest

from tessera.agent.inventory.gpu_inventory import GpuState, read_gpu_inventory
from tessera.agent.inventory.sliceable_gpus import SliceableGpu, SliceableGpus, enable_mig, node_gpus, sliceable_gpus
from tessera.claims.agent.claim_publisher import nvlink_groups
from tessera.clock import SystemClock
from tessera.mig.geometry import GpuModel
from tessera.mig.layout_planning import is_feasible
from tessera.mig.models import MODELS
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NoPermission
from tessera.nvml.interface import CardAttributes, GpuInfo, GpuUuid, NvLink
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


async def read_inventory(hardware: AsyncNvml) -> SliceableGpus:
    return sliceable_gpus(await read_gpu_inventory(hardware))


async def turn_mig_on(hardware: AsyncNvml, uuids: Collection[str]) -> SliceableGpus:
    refused = await enable_mig(hardware, uuids)
    return sliceable_gpus(await read_gpu_inventory(hardware), refused)


def cards(spec: str, *, mig: bool = True, passthrough: bool = False) -> tuple[SimulatedMachine, InlineNvml]:
    machine = SimulatedMachine(spec, seed="node-1", mig=mig, passthrough=passthrough)
    return machine, InlineNvml(machine, SystemClock())


async def test_one_model_is_described_once() -> None:
    _, hardware = cards("2xA100-40GB")
    gpus, shared = node_gpus((await read_inventory(hardware)).gpus)
    assert [(each.gpu_name, each.gpu_memory, each.mig_placement) for each in gpus] == [
        ("NVIDIA A100-SXM4-40GB", "40960Mi", None)
    ] * 2
    assert msgspec.to_builtins(shared["3g.20gb"]) == {
        "placements": ({"size": 4, "start": 0}, {"size": 4, "start": 4}),
        "giProfileId": 9,
        "ciProfileId": 2,
        "maxCount": 2,
    }


async def test_the_compute_profile_follows_from_the_slices_not_from_the_gpu_profile() -> None:
    _, hardware = cards("A100-40GB")
    _, shared = node_gpus((await read_inventory(hardware)).gpus)
    assert {name: row.ci_profile_id for name, row in shared.items()} == {
        "1g.5gb": 0,
        "1g.5gb+me": 0,
        "1g.10gb": 0,
        "2g.10gb": 1,
        "3g.20gb": 2,
        "4g.20gb": 3,
        "7g.40gb": 4,
    }


async def test_a_card_of_another_model_carries_its_own_table() -> None:
    _, hardware = cards("A100-40GB,A30")
    inventory = await read_inventory(hardware)
    gpus, shared = node_gpus(inventory.gpus)
    assert "3g.20gb" in shared
    assert gpus[1].mig_placement is not None
    assert set(gpus[1].mig_placement) == {"1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"}
    assert len(inventory.devices("nvidia.com/mig-2g.12gb")) == 2
    assert inventory.devices("nvidia.com/mig-9g.99gb") == []


@pytest.mark.parametrize(
    ("spec", "profile", "devices"),
    [
        ("4xA100-40GB", "1g.5gb", 28),
        ("4xA100-40GB", "1g.5gb.me", 4),
        ("A100-40GB,A30", "2g.12gb.me", 1),
        ("2xA30", "2g.12gb", 4),
        ("RTX-PRO-6000", "1g.24gb.me.all", 1),
    ],
)
async def test_there_are_as_many_devices_of_a_profile_as_slices_on_empty_cards(
    spec: str, profile: str, devices: int
) -> None:
    _, hardware = cards(spec)
    listed = (await read_inventory(hardware)).devices(f"nvidia.com/mig-{profile}")
    assert len({each.id for each in listed}) == len(listed) == devices


@pytest.mark.parametrize("model", [model for model in MODELS if model.table], ids=lambda model: model.short_name)
def test_no_card_lists_more_devices_than_slices_of_the_profile_fit_on_it(model: GpuModel) -> None:
    card = SliceableGpu(SimulatedMachine(model.short_name, seed="n", mig=True).devices()[0], model.geometry)
    for profile in model.geometry.profiles:
        count = len(card.device_positions(profile.resource))
        assert is_feasible(model.geometry, {profile.name: count})
        assert not is_feasible(model.geometry, {profile.name: count + 1})


@pytest.mark.parametrize(("spec", "gib"), [("4xA100-40GB", 160), ("A30", 24), ("H200,A100-80GB", 143 + 80)])
async def test_the_quota_is_the_charge_of_the_largest_layouts(spec: str, gib: int) -> None:
    _, hardware = cards(spec)
    assert (await read_inventory(hardware)).quota_gib() == gib


async def test_reading_changes_nothing() -> None:
    machine, hardware = cards("A100-40GB", mig=False)
    inventory = await read_inventory(hardware)
    assert inventory.gpus == ()
    assert [(each.reason, each.waits) for each in inventory.skipped] == [("MIG mode is off", True)]
    assert not machine.devices()[0].mig_enabled


async def test_a_card_in_use_is_left_as_it_is_and_the_others_are_joined() -> None:
    machine, hardware = cards("2xA100-40GB", mig=False)
    machine.start_process(machine.uuids()[0])
    inventory = await turn_mig_on(hardware, machine.uuids())
    assert [card.info.index for card in inventory.gpus] == [1]
    assert "while a process uses the card" in inventory.skipped[0].reason


async def test_a_call_that_is_not_permitted_is_reported() -> None:
    machine, hardware = cards("A100-40GB", mig=False)
    machine.fail("set_mig_mode", NoPermission)
    (skipped,) = (await turn_mig_on(hardware, machine.uuids())).skipped
    assert "MIG mode cannot be turned on" in skipped.reason
    assert skipped.waits


async def test_a_lost_card_is_skipped() -> None:
    machine, hardware = cards("2xA100-40GB")
    machine.lose(machine.uuids()[1])
    inventory = await read_inventory(hardware)
    assert len(inventory.gpus) == 1
    assert "fell off the bus" in inventory.skipped[0].reason


async def test_unhealthy_cards_keep_their_devices() -> None:
    _, hardware = cards("2xA100-40GB")
    inventory = await read_inventory(hardware)
    devices = inventory.devices("nvidia.com/mig-3g.20gb", unhealthy=frozenset({inventory.gpus[0].uuid}))
    assert [each.healthy for each in devices] == [False, False, True, True]


def linked(uuid: str, address: str, *links: NvLink, fabric: tuple[str, str] | None = None) -> GpuState:
    info = GpuInfo(
        uuid=GpuUuid(uuid),
        index=0,
        minor=0,
        name="a card",
        memory_mib=1,
        pci_bus_id=address,
        pci_device_id="0x0",
        compute_capability=(8, 0),
    )
    return GpuState(info=info, links=links, attributes=CardAttributes(fabric=fabric))


SWITCH = NvLink("00000000:C0:00.0", switch=True)


@pytest.mark.parametrize(
    ("cards", "groups"),
    [
        ([linked("a", "1"), linked("b", "2")], {}),
        ([linked("a", "1", NvLink("2")), linked("b", "2", NvLink("1")), linked("c", "3")], {"a": "a", "b": "a"}),
        ([linked("a", "1", NvLink("2")), linked("b", "2", NvLink("3")), linked("c", "3")], dict.fromkeys("abc", "a")),
        ([linked("a", "1", SWITCH), linked("b", "2"), linked("c", "3", SWITCH)], {"a": "a", "c": "a"}),
        ([linked("a", "1", NvLink("")), linked("b", "2", NvLink(""))], {}),
        ([linked("a", "1", fabric=("f", "7")), linked("b", "2", fabric=("f", "7"))], {"a": "f.7", "b": "f.7"}),
    ],
    ids=["none", "a pair", "a row", "a switch", "ends outside of the machine", "a fabric"],
)
def test_cards_that_nvlinks_join_have_one_group(cards: list[GpuState], groups: dict[str, str]) -> None:
    assert nvlink_groups(cards) == groups
