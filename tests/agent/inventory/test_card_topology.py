"""From reports of links to the topology of a node, and to the matrix of nvidia-smi."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from tessera.agent.inventory.card_topology import (
    CardLinks,
    PcieLevel,
    TopologyReader,
    matrix_of,
    path_between,
    pci_address,
    topology_of,
)
from tessera.agent.inventory.gpu_inventory import read_gpu_inventory
from tessera.api.nodes.usage import NodeTopology
from tessera.clock import LoopClock
from tessera.explain.topology_text import describe_joined, matrix_text
from tessera.nvml.errors import NotSupported
from tessera.nvml.interface import GpuUuid, NvLink, PciPlace
from tessera.nvml.simulated.boards import gpu_info
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import SimCard
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.placement.topology import CardLink, PciPath, Topology
from tessera_lab.simulation.virtual_time import run_virtual

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


# The matrix of a node, to the tab as nvidia-smi topo -m printed it on these machines (GPU NUMA ID: drivers from 535 on)

NUMA = ("0-55,112-167", "56-111,168-223")


def below_switches(root: int, switch: int, device: str, numa: int, cpus: str) -> PciPlace:
    """A device at one of two switches below a third one, as in the trays of DGX."""
    top = (f"pci0000:{root:02x}", "0000:01:00.0", "0000:02:00.0")
    return PciPlace((*top, f"0000:03:{switch:02x}.0", f"0000:04:{switch:02x}.0", f"port-{device}", device), numa, cpus)


def beside(root: int, device: str, numa: int) -> PciPlace:
    """A port of a network card with two, on a root complex of its own."""
    return PciPlace((f"pci0000:{root:02x}", "0000:01:00.0", device), numa)


def dgx_h100() -> tuple[list[PciPlace], list[PciPlace]]:
    cards = [below_switches(n // 2, n, f"gpu{n}", n // 4, NUMA[n // 4]) for n in range(8)]
    rails = [below_switches(n // 2, n, f"nic{n}", n // 4, "") for n in range(8)]
    pairs = [[beside(0x10 + half, f"port{half}{n}", half) for n in range(2)] for half in range(2)]
    return cards, [*rails[:4], *pairs[0], *rails[4:], *pairs[1]]


def dgx_a100() -> tuple[list[PciPlace], list[PciPlace]]:
    numa = (3, 1, 7, 5)
    cpus = ("48-63,176-191", "16-31,144-159", "112-127,240-255", "80-95,208-223")
    cards = [below_switches(n // 2, n, f"gpu{n}", numa[n // 2], cpus[n // 2]) for n in range(8)]
    rails = [below_switches(n // 2, 8 + n, f"nic{n}", numa[n // 2], "") for n in range(8)]
    pairs = [[beside(0x10 + at, f"port{at}{n}", 4 - 4 * at) for n in range(2)] for at in range(2)]
    return cards, [*rails[:4], *pairs[0], *rails[4:], *pairs[1]]


def pcie() -> tuple[list[PciPlace], list[PciPlace]]:
    cpus = ("0-23,48-71", "24-47,72-95")
    return [
        PciPlace((f"pci0000:{n // 2}", "rp", "us", f"ds{n}", f"gpu{n}"), n // 4, cpus[n // 4]) for n in range(6)
    ], []


@pytest.mark.parametrize(
    ("machine", "places", "links"), [("dgx-h100", dgx_h100, 18), ("dgx-a100", dgx_a100, 12), ("pcie", pcie, 0)]
)
def test_the_matrix_is_that_of_nvidia_smi(
    machine: str, places: Callable[[], tuple[list[PciPlace], list[PciPlace]]], links: int
) -> None:
    cards, network = places()
    infos = [gpu_info(SimCard(model="A100-40GB", index=n, uuid=GpuUuid(f"GPU-{n}"))) for n in range(len(cards))]
    uuids = [info.uuid for info in infos]
    pairs: dict[tuple[str, str], CardLink] = {
        (uuids[one], uuids[other]): CardLink(path_between(cards[one], cards[other]))
        for one, other in combinations(range(len(cards)), 2)
    }
    topology = Topology(uuids, pairs, switch_links=dict.fromkeys(uuids, links))
    nics = {f"mlx5_{number}": place for number, place in enumerate(network)}
    found = matrix_of(topology, dict(zip(uuids, cards, strict=True)), nics, infos)
    assert matrix_text(found) == (Path(__file__).parent / "topologies" / f"{machine}.txt").read_text(encoding="utf-8")
    assert msgspec.json.decode(msgspec.json.encode(found), type=NodeTopology) == found


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ("a/p/x", "b/p/x", PciPath.SYS),
        ("a/p/x", "a/q/x", PciPath.PHB),
        ("a/p/x.0", "a/p/x.1", PciPath.PIX),
        ("a/p/u/d/x", "a/p/u/e/x", PciPath.PIX),
        ("a/p/u/d/v/f/x", "a/p/u/e/x", PciPath.PXB),
        ("", "a/p/x", PciPath.UNKNOWN),
    ],
)
def test_the_way_between_two_devices(one: str, other: str, path: PciPath) -> None:
    places = [PciPlace(tuple(filter(None, text.split("/"))), numa) for text, numa in ((one, 0), (other, 1))]
    assert path_between(*places) is path_between(*reversed(places)) is path


def test_root_complexes_of_one_numa_node() -> None:
    places = [PciPlace((root, "p", "x"), 1) for root in ("a", "b")]
    assert path_between(*places) is PciPath.NODE
    assert path_between(places[0], PciPlace(("b", "p", "x"))) is PciPath.SYS


def test_a_reader_reads_again_only_after_a_change() -> None:
    async def story() -> None:
        machine = SimulatedMachine("4xH100-80GB", seed="n")
        hardware = InlineNvml(machine, LoopClock(0.0))
        reader, gpu = TopologyReader(hardware), machine.uuids()[0]
        cards = (await read_gpu_inventory(hardware)).gpus
        whole = await reader.read(cards)
        assert describe_joined(whole, machine.uuids()) == "its 4 cards are all joined by 18 NVLinks (NV18)"
        assert [(card.cpus, card.numa) for card in whole.cards] == [(NUMA[0], 0)] * 2 + [(NUMA[1], 1)] * 2
        machine.fail("place", NotSupported, times=None)
        assert await reader.read(cards) is whole
        machine.set_mig_mode(gpu, True)
        cut = await reader.read((await read_gpu_inventory(hardware)).gpus)
        assert cut.cells()[0] == [" X ", "PXB", "SYS", "SYS"]  # no NVLink in MIG mode
        assert [card.cpus for card in cut.cards] == [""] * 4

    run_virtual(story())


def test_a_fabric_that_all_cards_have_joined_is_the_clique() -> None:
    machine = SimulatedMachine("2xH100-80GB", seed="n")
    for gpu in machine.uuids():
        machine.set_attributes(gpu, msgspec.structs.replace(machine.attributes(gpu), fabric=("7f4a", "3")))

    async def read() -> NodeTopology:
        hardware = InlineNvml(machine, LoopClock(0.0))
        return await TopologyReader(hardware).read((await read_gpu_inventory(hardware)).gpus)

    assert run_virtual(read()).clique == "7f4a.3"
    machine.set_attributes(gpu, msgspec.structs.replace(machine.attributes(gpu), fabric=("7f4a", "4")))
    assert run_virtual(read()).clique == ""


def test_a_lost_card_is_unknown_and_the_others_are_not() -> None:
    machine = SimulatedMachine("4xA30", seed="n")
    machine.lose(machine.uuids()[1])

    async def read() -> NodeTopology:
        hardware = InlineNvml(machine, LoopClock(0.0))
        return await TopologyReader(hardware).read((await read_gpu_inventory(hardware)).gpus)

    cells = run_virtual(read()).cells()
    assert [row[-1] for row in cells] == ["SYS", "N/A", "PXB", " X "]
