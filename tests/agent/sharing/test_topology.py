"""From reports of links to the topology of a node."""

import pytest

from tessera.agent.sharing.device_nodes import CardLinks, PcieLevel, pci_address, topology_of
from tessera.nvml.attributes import NvLink
from tessera.nvml.interface import GpuUuid

A, B, C = GpuUuid("GPU-a"), GpuUuid("GPU-b"), GpuUuid("GPU-c")
BUS = {A: "00000000:07:00.0", B: "00000000:0B:00.0", C: "00000000:48:00.0"}


def card(uuid: GpuUuid, *links: NvLink) -> CardLinks:
    return CardLinks(uuid=uuid, pci_bus_id=BUS[uuid], links=links)


@pytest.mark.parametrize("text", ["00000000:0B:00.0", "0000:0b:00.0", "0:0b:00.0"])
def test_an_address_has_one_form(text: str) -> None:
    assert pci_address(text) == "0:0b:00.0"


def test_direct_links_count_for_the_pair() -> None:
    topology = topology_of([card(A, NvLink("0000:0b:00.0"), NvLink("0000:0b:00.0")), card(B), card(C)], {})
    assert topology.score(A, B) == 200
    assert topology.score(A, C) == 0


def test_links_to_a_switch_count_for_every_pair_on_it() -> None:
    switch = [NvLink("0000:c1:00.0", switch=True)] * 12
    topology = topology_of([card(A, *switch), card(B, *switch), card(C)], {})
    assert topology.score(A, B) == 1200
    assert topology.score(A, C) == 0


@pytest.mark.parametrize(
    ("meeting", "points"),
    [
        (PcieLevel.INTERNAL, 60),
        (PcieLevel.SINGLE, 50),
        (PcieLevel.MULTIPLE, 40),
        (PcieLevel.HOSTBRIDGE, 30),
        (PcieLevel.NODE, 20),
        (PcieLevel.SYSTEM, 10),
    ],
)
def test_where_cards_meet(meeting: PcieLevel, points: int) -> None:
    topology = topology_of([card(A), card(B)], {(A, B): meeting})
    assert topology.score(B, A) == points


def test_a_lost_card_keeps_the_links_that_others_report() -> None:
    reports = [card(A), card(B, NvLink(BUS[A]), NvLink(BUS[A])), card(C)]
    topology = topology_of(reports, {(B, C): PcieLevel.SINGLE})
    assert topology.score(A, B) == 200
    assert topology.preferred_cards([B, C], (), 2) == (B, C)


def test_links_and_meeting_add_up_whichever_order_they_are_told_in() -> None:
    topology = topology_of([card(A, NvLink(BUS[B])), card(B, NvLink(BUS[A]))], {(B, A): PcieLevel.SINGLE})
    assert topology.score(A, B) == 150
