"""A preflight tests every card with real kernels on stand-in devices; wrong bits and slow cards are found."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.libcuda import Libcuda
from tests.support.ptx_machine import Memory

from tessera.accept.card_tests import Effort, Output, diagnose_card, time_all_reduce
from tessera.accept.cuda import CudaError
from tessera.accept.figures import FIGURES, SHARE_OF_MEDIAN, SHARES, compare_with_others, judge
from tessera.accept.preflight import preflight_lines, run_preflight, run_quick
from tessera.agent.health.repairs import ProcessPreflight
from tessera.agent.simulated import SimulatedPreflight
from tessera.api.nodes.preflights import CardPreflight, Preflight
from tessera.clock import SystemClock
from tessera.mig.models import model_by_product
from tessera.nvml.errors import UnknownNvmlError
from tessera.nvml.interface import GpuUuid, NvLink
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

EFFORT = Effort(memory_share=1.0, chunk=4096, rows=64, copy=4096, repeats=2)
#: What these tests do in a millisecond: two copies of 4096 bytes, two products of 64 rows.
COPIED, MULTIPLIED = 2 * 4096 / 1e-3, 2 * 2 * 64**3 / 1e-3


def run(machine: SimulatedMachine, library: Libcuda, *, only: GpuUuid | None = None) -> Preflight:
    return run_preflight(machine, library, only=only, effort=EFFORT, tools=False)


def library_of(machine: SimulatedMachine, **options: object) -> Libcuda:
    return Libcuda([str(each) for each in machine.uuids()], **options)  # type: ignore[arg-type]


def test_every_card_is_tested_with_every_test_and_nothing_is_left() -> None:
    machine = SimulatedMachine("2xA30", seed="n")
    library = library_of(machine)
    found = run(machine, library)
    assert [(card.uuid, card.index, card.error, card.memory) for card in found.cards] == [
        (machine.uuids()[0], 0, "", 8192),
        (machine.uuids()[1], 1, "", 8192),
    ]
    rates = {measure.test: measure.value for measure in found.cards[0].measures}
    assert rates == {
        "memory_bandwidth": pytest.approx(2 * COPIED),
        "product": pytest.approx(MULTIPLIED),
        "host_to_card": pytest.approx(COPIED),
        "card_to_host": pytest.approx(COPIED),
        "card_to_card": pytest.approx(COPIED),
    }
    assert rates.keys() == SHARES.keys()
    assert library.alive == []
    assert {device for device, _ in library.ran} == {0, 1}


def test_rates_are_measured_before_much_memory_is_freed() -> None:
    """The driver clears freed memory, and copies to the card take twice as long meanwhile."""
    machine = SimulatedMachine("2xA30", seed="n")
    library = library_of(machine)
    run(machine, library)
    kernels = [kernel for _, kernel in library.ran]
    assert kernels.index("tessera_fill") > max(at for at, each in enumerate(kernels) if each == "tessera_product")


def flip(kernel: str) -> Callable[[str, Memory, int], None]:
    """Changes one bit at the first place of a kernel before each run of it."""

    def change(name: str, memory: Memory, place: int) -> None:
        if name == kernel:
            memory.store("<I", place + 20, memory.load("<I", place + 20) ^ 1)

    return change


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("tessera_check", "memory: 1 of 1024 words of piece 0 are not what was written"),
        ("tessera_check_product", "product of matrices: 1 of 4096 elements are wrong"),
    ],
)
def test_a_wrong_bit_fails_the_card(kernel: str, said: str) -> None:
    machine = SimulatedMachine("A30", seed="n")
    library = library_of(machine)
    library.before = flip(kernel)
    (card,) = run(machine, library).cards
    assert card.error == said
    assert card.findings[0] == said


@pytest.mark.parametrize(
    "call",
    ["cuMemGetInfo_v2", "cuMemcpyDtoDAsync_v2", "cuEventElapsedTime", "cuMemHostAlloc", "cuLaunchKernel"],
)
def test_a_call_that_fails_is_the_cards_error(call: str) -> None:
    machine = SimulatedMachine("A30", seed="n")
    (card,) = run(machine, library_of(machine, fail={call: 719})).cards
    assert card.error == f"{call}: as the driver words it (CUresult 719)"


def test_a_card_without_free_memory_is_an_error_that_says_what_to_do() -> None:
    machine = SimulatedMachine("A30", seed="n")
    (card,) = run(machine, library_of(machine, free=100)).cards
    assert card.error == "memory: less than 4096 bytes are free; end the programs on the card"


def test_one_card_that_fails_leaves_the_others_their_results() -> None:
    machine = SimulatedMachine("3xA30", seed="n")
    library = library_of(machine)

    def fail(kernel: str, memory: Memory, place: int) -> None:
        if library.ran and library.ran[-1][0] == 1:
            flip("tessera_check_product")(kernel, memory, place)

    library.before = fail
    found = run(machine, library)
    assert [bool(card.error) for card in found.cards] == [False, True, False]
    assert [len(card.measures) for card in found.cards] == [5, 1, 5]


@pytest.mark.parametrize(("cards", "bad", "blamed"), [(4, 2, [2]), (3, 0, [0]), (2, 1, [0, 1])])
def test_a_card_that_no_copy_reaches_is_blamed_and_not_its_neighbours(cards: int, bad: int, blamed: list[int]) -> None:
    """Of two cards nobody knows which one fails."""

    class BadWay(Libcuda):
        def cuMemcpyPeerAsync(self, target: Any, to: Any, *rest: Any) -> int:  # noqa: N802 - CUDA's name
            if 0x1000 + bad in {to.value, rest[1].value}:
                return 719
            return super().cuMemcpyPeerAsync(target, to, *rest)

    machine = SimulatedMachine(f"{cards}xA30", seed="n")
    found = run(machine, BadWay([str(each) for each in machine.uuids()]))
    assert [card.index for card in found.cards if card.error] == blamed
    assert all("copy from card" in card.error for card in found.cards if card.error)


def test_lost_cards_and_those_that_cuda_does_not_show_are_errors_and_mig_is_none() -> None:
    machine = SimulatedMachine("3xA30", seed="n")
    first, second, third = machine.uuids()
    machine.set_mig_mode(third, True)
    machine.lose(second)
    found = run(machine, Libcuda([]))
    assert [(card.error, card.skipped) for card in found.cards] == [
        ("NVML lists the card and CUDA does not", ""),
        (machine.devices()[1].problem, ""),
        ("", "the card is in MIG mode; figures are of whole cards"),
    ]
    assert found.cards[0].uuid == first
    assert len(found.findings) == 2


def test_one_card_alone_is_tested_without_the_ways_to_others() -> None:
    machine = SimulatedMachine("2xA30", seed="n")
    second = machine.uuids()[1]
    library = library_of(machine)
    (card,) = run(machine, library, only=second).cards
    assert card.uuid == second
    assert "card_to_card" not in {measure.test for measure in card.measures}
    assert {device for device, _ in library.ran} == {1}
    with pytest.raises(CudaError, match="GPU-nobody: NVML does not list this card"):
        run(machine, library, only=GpuUuid("GPU-nobody"))


def test_a_card_that_is_slower_than_its_board_is_found() -> None:
    machine = SimulatedMachine("4xA30", seed="n")
    found = run(machine, library_of(machine, milliseconds=lambda device: 2.0 if device == 2 else 1.0))
    product = [measure for measure in found.cards[2].measures if measure.test == "product"]
    assert "below 10% of 10.3 TFLOP/s (NVIDIA A30 Tensor Core GPU data sheet)" in product[0].finding


def test_a_rate_is_judged_by_the_share_of_its_figure() -> None:
    figure = FIGURES["NVIDIA H100 80GB HBM3"]
    slow = judge("memory_bandwidth", 1.6e12, figure.memory, figure.source)
    assert slow.finding == (
        "memory_bandwidth 1.6 TB/s: below 50% of 3.35 TB/s (NVIDIA H100 Tensor Core GPU data sheet)"
    )
    assert judge("memory_bandwidth", 1.7e12, figure.memory, figure.source).finding == ""
    assert judge("product", 1.0, 0.0, "").finding == ""


def test_a_median_needs_three_cards() -> None:
    measure = judge("product", 1.0, 0.0, "")
    assert compare_with_others(measure, [1.0, 9.0]).finding == ""
    assert f"below {SHARE_OF_MEDIAN:.0%}" in compare_with_others(measure, [1.0, 9.0, 9.0]).finding


def test_the_way_to_a_card_is_judged_by_the_links_that_lead_there() -> None:
    machine = SimulatedMachine("2xV100", seed="n")
    first, second = (card.pci_bus_id for card in machine.devices())
    machine.set_nvlinks(machine.uuids()[0], [NvLink(second), NvLink(second), NvLink("00000000:77:00.0")])
    machine.set_nvlinks(machine.uuids()[1], [NvLink(first)])
    found = run(machine, library_of(machine))
    figures = [measure.figure for card in found.cards for measure in card.measures if measure.test == "card_to_card"]
    assert figures == [150e9 * 2 / 6, 150e9 * 1 / 6]


@pytest.mark.parametrize("product", FIGURES)
def test_every_board_with_figures_is_a_known_product_with_a_source(product: str) -> None:
    assert model_by_product(product) is not None
    assert FIGURES[product].source.startswith("NVIDIA ")


def test_text_has_a_line_for_each_card_and_what_is_wrong() -> None:
    machine = SimulatedMachine("A30", seed="n")
    found = run(machine, library_of(machine))
    lines = list(preflight_lines(found))
    assert lines[0].startswith("card 0 NVIDIA A30: 7.63e-06 GiB of memory tested, memory_bandwidth ")
    assert lines[1].startswith("  failed: memory_bandwidth")


DCGM = b"""{"DCGM Diagnostic": {"test_categories": [
  {"category": "Hardware", "tests": [
    {"name": "memory", "results": [{"gpu_id": "3", "status": "Pass"}]},
    {"name": "pcie", "results": [{"gpu_id": "3", "status": "Fail", "warnings": [{"warning": "slow"}]}]}]}]}}"""


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (Output(0, b"{}"), ""),
        (Output(226, DCGM), "dcgmi diag -r 2 ended with status 226: failed pcie"),
        (
            Output(1, b"cannot connect to host engine"),
            "dcgmi diag -r 2 ended with status 1: cannot connect to host engine",
        ),
        (Output(124, b"no answer within 600 s"), "dcgmi diag -r 2 ended with status 124: no answer within 600 s"),
    ],
)
def test_dcgm_decides_by_its_status(output: Output, error: str) -> None:
    asked: list[list[str]] = []

    def answer(command: object) -> Output:
        asked.append(list(command))  # type: ignore[call-overload]
        return output

    assert diagnose_card(SimulatedMachine("A30", seed="n").devices()[0], answer) == error
    assert asked == [["dcgmi", "diag", "-r", "2", "-i", "0", "-j"]]


def test_nccls_rate_is_read_or_its_words_are_shown() -> None:
    assert time_all_reduce(8, lambda _: Output(0, b"# Avg bus bandwidth    : 361.5 \n")) == 361.5e9
    found = time_all_reduce(8, lambda _: Output(2, b"Test CUDA failure"))
    assert found == "all_reduce_perf ended with status 2: Test CUDA failure"


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], ProcessPreflight]:
    """A runner whose process is a small program."""

    def make(text: str) -> ProcessPreflight:
        path = tmp_path / "program.py"
        path.write_text(text)
        return ProcessPreflight({}, seconds=20.0, command=(sys.executable, str(path)))

    return make


async def test_the_process_gives_the_result_of_its_card(program: Callable[[str], ProcessPreflight]) -> None:
    card = SimulatedMachine("A30", seed="n").devices()[0]
    result = CardPreflight(uuid=card.uuid, index=0, product="NVIDIA A30", memory=7)
    text = msgspec.json.encode(Preflight(cards=(result,))).decode()
    runner = program(
        f"import sys\nassert sys.argv[1:] == ['validate', '--preflight', '--card', {card.uuid!r}, '--output', 'json']\n"
        f"print({text!r})\nsys.exit(2)\n"
    )
    assert await runner.run(card) == result


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise SystemExit('error: CUDA: cuInit')", "error: CUDA: cuInit"),
        ("print('{}')", "the preflight ended with status 0 and said nothing"),
        ("print('[' * 3_000_000)", "the preflight ended with status 0 and said nothing"),
        ("import os; os.kill(os.getpid(), 9)", "the preflight ended with status -9 and said nothing"),
    ],
)
async def test_a_process_without_a_result_is_an_error(
    program: Callable[[str], ProcessPreflight], text: str, error: str
) -> None:
    found = await program(text).run(SimulatedMachine("A30", seed="n").devices()[0])
    assert found.error == error
    assert found.findings


async def test_a_program_that_is_not_there_is_an_error() -> None:
    runner = ProcessPreflight({}, command=("/nowhere/tessera",))
    found = await runner.run(SimulatedMachine("A30", seed="n").devices()[0])
    assert found.error == "the preflight cannot start: No such file or directory"


async def test_a_simulated_card_is_tested_without_computing() -> None:
    machine = SimulatedMachine("2xA30", seed="n")
    machine.fail("compute", UnknownNvmlError, times=1, gpu=machine.uuids()[1])
    runner = SimulatedPreflight(machine, SystemClock())
    first, second = [await runner.run(card) for card in machine.devices()]
    assert (first.findings, first.tool) == ((), "simulated")
    assert second.findings
    assert (await runner.run(machine.devices()[1])).findings == ()


def test_the_quick_test_tries_the_one_device_that_cuda_shows_and_judges_no_rate() -> None:
    machine = SimulatedMachine("2xA30", seed="n")
    (first, second), library = machine.uuids(), Libcuda(1)
    (card,) = run_quick(machine, library, second, effort=EFFORT).cards
    assert (card.uuid, card.index, card.memory, card.findings) == (second, 1, 8192, ())
    assert {each.test for each in card.measures} == {"host_to_card", "card_to_host"}
    assert all(each.figure == 0 for each in card.measures)
    assert library.alive == []
    machine.start_process(second, pid=4711)
    (card,) = run_quick(machine, Libcuda(1), second, effort=EFFORT).cards
    assert (card.skipped, card.findings) == ("process 4711 uses the card", ())
    with pytest.raises(CudaError, match="CUDA shows 2 devices instead of the one"):
        run_quick(machine, Libcuda(2), first, effort=EFFORT)
    with pytest.raises(CudaError, match="NVML does not list this card"):
        run_quick(machine, Libcuda(1), GpuUuid("GPU-9"), effort=EFFORT)


def test_a_slice_is_tested_while_others_compute_on_its_card() -> None:
    machine = SimulatedMachine("A30", seed="n", mig=True)
    (uuid,) = machine.uuids()
    library = Libcuda(1)
    library.before = flip("tessera_check")
    (card,) = run_quick(machine, library, uuid, effort=EFFORT).cards
    assert card.findings[0].startswith("memory: ")


async def test_the_quick_tests_process_sees_its_device_only(program: Callable[[str], ProcessPreflight]) -> None:
    card = SimulatedMachine("A30", seed="n").devices()[0]
    text = msgspec.json.encode(Preflight(cards=(CardPreflight(uuid=card.uuid, index=0, product="x"),))).decode()
    runner = program(
        "import os, sys\nassert sys.argv[1:4] == ['validate', '--preflight', '--quick'], sys.argv\n"
        f"assert os.environ['CUDA_VISIBLE_DEVICES'] == 'MIG-1'\nprint({text!r})\n"
    )
    assert (await runner.run_quick(card, "MIG-1")).error == ""


def test_a_card_that_a_program_uses_is_not_filled() -> None:
    machine = SimulatedMachine("2xA30", seed="n")
    first, second = machine.uuids()
    machine.start_process(second, pid=4711)
    library = library_of(machine)
    found = run(machine, library)
    assert (found.cards[1].skipped, found.cards[1].findings) == ("process 4711 uses the card", ())
    assert {device for device, _ in library.ran} == {0}
    (card,) = run(machine, library, only=second).cards
    assert card.error == "process 4711 uses the card"
    assert first != second


def test_a_node_whose_cards_are_all_in_mig_mode_has_nothing_to_test() -> None:
    machine = SimulatedMachine("2xA30", seed="n", mig=True)
    found = run(machine, Libcuda(fail={"cuInit": 100}))
    assert found.findings == []
    with pytest.raises(CudaError, match="cuInit"):
        run(machine, Libcuda(fail={"cuInit": 999}))
