"""Detection of a Node that counts more devices than the agent offers."""

from collections.abc import Collection, Mapping

import pytest

from tessera.agent.sharing.occupancy import WithholdingReasons, count_entries, overcounted_resources
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement

GPU = "nvidia.com/gpu"


def offer(name: str = GPU, cards: int = 2) -> Advertisement:
    devices = (AdvertisedDevice(id=f"GPU-{n}", uuid=f"GPU-{n}", gpu=f"GPU-{n}", index=str(n)) for n in range(cards))
    return Advertisement(resources={name: AdvertisedResource(name=name, devices=tuple(devices))})


def too_many(
    allocatable: Mapping[str, str], offered: Advertisement, reasons: WithholdingReasons, former: Collection[str] = ()
) -> tuple[str, ...]:
    return overcounted_resources(allocatable, count_entries(offered, reasons, former))


@pytest.mark.parametrize(("counted", "found"), [("2", ()), ("1", ()), ("3", (GPU,)), ("0", ())])
def test_as_many_as_are_offered(counted: str, found: tuple[str, ...]) -> None:
    assert too_many({GPU: counted}, offer(), WithholdingReasons()) == found


def test_what_is_kept_free_or_lost_is_not_given_out() -> None:
    assert too_many({GPU: "2"}, offer(), WithholdingReasons(fenced=frozenset({"GPU-1"}))) == (GPU,)
    assert too_many({GPU: "1"}, offer(), WithholdingReasons(fenced=frozenset({"GPU-1"}))) == ()
    assert too_many(
        {GPU: "1"}, offer(), WithholdingReasons(fenced=frozenset({"GPU-1"}), unreadable={"GPU-0": "lost"})
    ) == (GPU,)


def test_of_what_was_offered_once_nothing_is_given_out() -> None:
    former = {"nvidia.com/mig-1g.5gb", GPU}
    assert too_many({GPU: "2", "nvidia.com/mig-1g.5gb": "7"}, offer(), WithholdingReasons(), former) == (
        "nvidia.com/mig-1g.5gb",
    )
    assert too_many({GPU: "2", "nvidia.com/mig-1g.5gb": "0"}, offer(), WithholdingReasons(), former) == ()


def test_other_resources_are_nothing_to_us() -> None:
    assert too_many({"cpu": "8", "example.com/fpga": "4", "memory": "24683068Ki"}, offer(), WithholdingReasons()) == ()


def test_a_thousand_shares_are_read_as_the_node_writes_them() -> None:
    assert too_many({GPU: "1k"}, offer(cards=1000), WithholdingReasons()) == ()
    assert too_many({GPU: "1k"}, offer(cards=999), WithholdingReasons()) == (GPU,)
