"""Whether the Node counts more than is given out."""

import pytest

from tessera.agent.sharing.refusals import Grounds
from tessera.agent.sharing.stale_capacity import overcounted
from tessera.api.sharing.devices import Device, Offer, Offered

GPU = "nvidia.com/gpu"


def offer(name: str = GPU, cards: int = 2) -> Offer:
    devices = (Device(id=f"GPU-{n}", uuid=f"GPU-{n}", gpu=f"GPU-{n}", index=str(n)) for n in range(cards))
    return Offer(resources={name: Offered(name=name, devices=tuple(devices))})


@pytest.mark.parametrize(("counted", "too_many"), [("2", ()), ("1", ()), ("3", (GPU,)), ("0", ())])
def test_as_many_as_are_offered(counted: str, too_many: tuple[str, ...]) -> None:
    assert overcounted({GPU: counted}, offer(), Grounds()) == too_many


def test_what_is_kept_free_or_lost_is_not_given_out() -> None:
    assert overcounted({GPU: "2"}, offer(), Grounds(fenced=frozenset({"GPU-1"}))) == (GPU,)
    assert overcounted({GPU: "1"}, offer(), Grounds(fenced=frozenset({"GPU-1"}))) == ()
    assert overcounted({GPU: "1"}, offer(), Grounds(fenced=frozenset({"GPU-1"}), lost=frozenset({"GPU-0"}))) == (GPU,)


def test_of_what_was_offered_once_nothing_is_given_out() -> None:
    former = {"nvidia.com/mig-1g.5gb", GPU}
    assert overcounted({GPU: "2", "nvidia.com/mig-1g.5gb": "7"}, offer(), Grounds(), former) == (
        "nvidia.com/mig-1g.5gb",
    )
    assert overcounted({GPU: "2", "nvidia.com/mig-1g.5gb": "0"}, offer(), Grounds(), former) == ()


def test_other_resources_are_nothing_to_us() -> None:
    assert overcounted({"cpu": "8", "example.com/fpga": "4", "memory": "24683068Ki"}, offer(), Grounds()) == ()


def test_a_thousand_shares_are_read_as_the_node_writes_them() -> None:
    assert overcounted({GPU: "1k"}, offer(cards=1000), Grounds()) == ()
    assert overcounted({GPU: "1k"}, offer(cards=999), Grounds()) == (GPU,)
