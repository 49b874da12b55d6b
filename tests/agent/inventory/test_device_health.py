"""Errors of cards and instances withhold the right entries from kubelet, and end."""

from tessera.agent.health.fault import CardsListed, HardwareEventReported
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.inventory.device_state import entry_health
from tessera.api.sharing.devices import AdvertisedDevice, GpuDescription, MigDevice, SharingKind
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid

ONE, OTHER = "GPU-1", "GPU-2"
WHOLE = [
    GpuDescription(uuid=uuid, index=index, product="X", compute_capability=(8, 0))
    for index, uuid in enumerate((ONE, OTHER))
]
CUT = GpuDescription(
    uuid=ONE,
    index=0,
    product="X",
    compute_capability=(8, 0),
    mig_enabled=True,
    mig_devices=tuple(
        MigDevice(uuid=f"MIG-{gi}", index=index, profile="1g.5gb", gi_id=gi, ci_id=0)
        for index, gi in enumerate((3, 4, 5))
    ),
)


def shares(gpu: str, uuid: str, count: int) -> list[AdvertisedDevice]:
    kind = SharingKind.TIME_SLICING
    return [
        AdvertisedDevice(id=f"{uuid}::{number}", uuid=uuid, gpu=gpu, index="0", replicas=count, kind=kind)
        for number in range(count)
    ]


def node() -> HealthStateMachine:
    health = HealthStateMachine(HealthPolicy())
    health.handle(CardsListed(frozenset({ONE, OTHER})), 0)
    return health


def xid(number: int, gi: int | None = None) -> HardwareEventReported:
    ci = None if gi is None else 0
    return HardwareEventReported(GpuEvent(kind=GpuEventKind.XID, gpu=GpuUuid(ONE), xid=number, gi_id=gi, ci_id=ci))


def out(devices: list[AdvertisedDevice], gpus: list[GpuDescription], health: HealthStateMachine) -> list[str]:
    return sorted(
        name
        for name, verdict in entry_health(devices, gpus, health.faulty_gpus, health.health_of).items()
        if not verdict.healthy
    )


def test_a_bad_card_takes_all_its_shares_along_and_no_other() -> None:
    devices = [*shares(ONE, ONE, 4), *shares(OTHER, OTHER, 4)]
    health = node()
    health.handle(xid(48), 1)
    assert out(devices, WHOLE, health) == ["GPU-1::0", "GPU-1::1", "GPU-1::2", "GPU-1::3"]


def test_a_bad_card_takes_all_its_instances_along() -> None:
    devices = [device for mig in CUT.mig_devices for device in shares(ONE, mig.uuid, 1)]
    health = node()
    health.handle(xid(79), 0)
    assert len(out(devices, [CUT], health)) == 3


def test_a_device_that_is_gone_is_unhealthy() -> None:
    assert out(shares(ONE, "MIG-9", 1), [CUT], node()) == ["MIG-9::0"]
