"""The MPS daemon that a claim's configuration asks for, and configurations that no node carries out."""

from typing import Any

import pytest

from tessera.agent.base.settings import ServicePlan
from tessera.api.sharing.profile import ClientShare
from tessera.claims.agent.prepared_claims import plan_daemon
from tessera.dra.claims import DeviceConfig, OpaqueConfig
from tessera.dra.opaque_configs import ConfigRefused, DeviceSettings, MpsSettings, check_configs
from tessera.nvml.interface import GpuInfo, GpuUuid

MPS, PLAIN = "MPS", DeviceSettings(kind="GpuConfig")
A, B = "GPU-a", "GPU-b"


def card(uuid: str) -> GpuInfo:
    return GpuInfo(
        uuid=GpuUuid(uuid),
        index=0,
        minor=0,
        name="Tesla T4",
        memory_mib=15_360,
        pci_bus_id="00000000:00:00.0",
        pci_device_id="0x1EB810DE",
        compute_capability=(7, 5),
    )


def mps(**settings: Any) -> DeviceSettings:
    return DeviceSettings(kind="GpuConfig", strategy=MPS, mps=MpsSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ((PLAIN, PLAIN), None),
        ((mps(), mps()), {A: ClientShare(15_360, 100), B: ClientShare(15_360, 100)}),
        ((mps(thread_percent=50, pinned_mib=4096), PLAIN), {A: ClientShare(4096, 50)}),
        (
            (mps(pinned_mib=1, pinned_mib_by_device={"1": 7}), mps(pinned_mib=1, pinned_mib_by_device={"1": 7})),
            {A: ClientShare(1, 100), B: ClientShare(7, 100)},
        ),
        ((mps(pinned_mib_by_device={A: 9}), PLAIN), {A: ClientShare(9, 100)}),
    ],
)
def test_a_daemon_serves_the_cards_with_its_strategy_and_their_limits(
    settings: tuple[DeviceSettings, DeviceSettings], shares: dict[str, ClientShare] | None
) -> None:
    found = plan_daemon("claim ns/c", list(zip((card(A), card(B)), settings, strict=True)))
    assert found == (None if shares is None else ServicePlan(shares, 1))


def test_a_limit_for_a_device_that_the_claim_does_not_have_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigRefused, match=r"claim ns/c: defaultPerDevicePinnedMemoryLimit\.2 is no device"):
        plan_daemon("claim ns/c", [(card(A), mps(pinned_mib_by_device={"2": 1}))])


@pytest.mark.parametrize(
    ("kind", "sharing", "field"),
    [
        ("MigDeviceConfig", {"strategy": MPS}, "sharing.strategy is MPS"),
        ("GpuConfig", {"strategy": MPS, "mpsConfig": {"multiUser": True}}, "sharing.mpsConfig.multiUser is true"),
        (
            "GpuConfig",
            {"strategy": MPS, "mpsConfig": {"defaultActiveThreadPercentage": 0}},
            "sharing.mpsConfig.defaultActiveThreadPercentage is 0",
        ),
        (
            "GpuConfig",
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            "sharing.timeSlicingConfig.interval is Long",
        ),
    ],
)
def test_what_no_node_carries_out_is_refused_with_its_field(kind: str, sharing: dict[str, Any], field: str) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    config = DeviceConfig(opaque=OpaqueConfig(driver="d", parameters=parameters))
    with pytest.raises(ConfigRefused, match=f"c.opaque.parameters.{field}"):
        check_configs([("c", config)], "d")
    check_configs([("c", config)], "another")
