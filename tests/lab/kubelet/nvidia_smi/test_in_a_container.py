"""``nvidia-smi`` in a container: the card or slice that it holds, in the layout of the R550 drivers."""

import re

import pytest

from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.nvidia_smi.program import run_nvidia_smi

#: Thursday, 1 January 2026, 00:00.
NOW = 1_767_225_600.0
#: Values of a card: its name, its MIG mode, how much memory it has and uses, how busy it is.
FIELDS = "--query-gpu=index,gpu_name,mig.mode.current,memory.total,memory.used,utilization.gpu"


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xA100-40GB,1xT4", seed="node-1", mig=True)


@pytest.fixture
def slot(machine: SimulatedMachine) -> str:
    """A slice of card 1 with a process in it."""
    gpu = machine.uuids()[1]
    made = machine.create_compute_instance(gpu, machine.create_gpu_instance(gpu, "3g.20gb", 0), 2).mig_uuid
    machine.start_process(made, 12 << 20)
    return made


def smi(machine: SimulatedMachine, *arguments: str, sees: str) -> tuple[int, list[str]]:
    ran = run_nvidia_smi(arguments, machine, [sees], NOW)
    return ran.code, (ran.stdout or ran.stderr).decode().splitlines()


def test_a_slice_is_on_card_0_which_shows_no_memory(machine: SimulatedMachine, slot: str) -> None:
    code, lines = smi(machine, sees=slot)
    assert (code, {len(line) for line in lines[1:] if line.strip()}) == (0, {91})
    assert lines[0] == "Thu Jan  1 00:00:00 2026       "
    assert lines[8:11] == [
        "|   0  NVIDIA A100-SXM4-40GB         N/A  |   00000000:11:00.0 Off |                   On |",
        "| N/A   32C   N/A             60W /  400W |                  N/A   |     N/A      Default |",
        "|                                         |                        |              Enabled |",
    ]
    assert lines[20] == "|  0    1   0   0  |              12MiB / 19968MiB    | 42      0 |  3   0    2    0    0 |"


#: Rows of 570.86.15 on an H200 with 2g.35gb and of 570.133.20 on a B200, as their owners published them.
PUBLISHED = (
    "| N/A   30C    P0             76W /  700W |                  N/A   |     N/A      Default |",
    "|  0    5   0   0  |              29MiB / 33280MiB    | 32      0 |  2   0    2    0    2 |",
    "| N/A   32C    P0            145W / 1000W |       0MiB / 183359MiB |      0%      Default |",
)


def ends(row: str) -> list[int]:
    """Where the words of a row end; columns are right-aligned."""
    return [each.end() for each in re.finditer(r"[^\s|]+", row)]


def test_columns_end_where_those_of_real_drivers_end(machine: SimulatedMachine, slot: str) -> None:
    _, sliced = smi(machine, sees=slot)
    _, whole = smi(machine, sees=machine.uuids()[2])
    for row, real in zip((sliced[9], sliced[20], whole[9]), PUBLISHED, strict=True):
        assert ends(row) == ends(real)
    assert sum(line == " " * 89 for line in sliced) == sum(line == " " * 89 for line in whole) == 1


def test_a_whole_card_shows_memory_and_use(machine: SimulatedMachine) -> None:
    whole = machine.uuids()[2]
    machine.set_process_activity(machine.start_process(whole, 1 << 30), 0.5)
    _, lines = smi(machine, sees=whole)
    assert lines[9].split("|")[2:4] == ["    1024MiB /  15360MiB ", "     50%      Default "]
    assert not any("MIG devices" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            [FIELDS, "--format=csv"],
            [
                "index, gpu_name, mig.mode.current, memory.total [MiB], memory.used [MiB], utilization.gpu [%]",
                "0, Tesla T4, N/A, 15360 MiB, 0 MiB, 0 %",
            ],
        ),
        ([FIELDS, "--format=csv,noheader,nounits"], ["0, Tesla T4, N/A, 15360, 0, 0"]),
        ([FIELDS, "--format=noheader", "--format=csv"], ["0, Tesla T4, N/A, 15360 MiB, 0 MiB, 0 %"]),
    ],
)
def test_fields_as_csv(machine: SimulatedMachine, arguments: list[str], lines: list[str]) -> None:
    assert smi(machine, *arguments, sees=machine.uuids()[2]) == (0, lines)


def test_the_report_names_the_slice(machine: SimulatedMachine, slot: str) -> None:
    code, lines = smi(machine, "-q", sees=slot)
    values = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("GPU"))
    read = {name.strip(): value.strip() for name, value in values.items()}
    assert code == 0
    assert (read["Attached GPUs"], read["GPU UUID"], read["MIG Device 0"]) == ("1", machine.uuids()[1], slot)


def test_how_the_cards_that_are_seen_are_joined() -> None:
    machine = SimulatedMachine("8xH100-80GB", seed="node-1")
    seen = [machine.uuids()[at] for at in (2, 5)]
    ran = run_nvidia_smi(["topo", "-m"], machine, seen, NOW)
    header, first, second = ran.stdout.decode().splitlines()[:3]
    assert header.split("\t")[:3] == ["", "GPU0", "GPU1"]
    assert first.split("\t")[:3] == ["GPU0", " X ", "NV18"]
    assert second.split("\t")[:3] == ["GPU1", "NV18", " X "]
    assert "  NV#  = Connection traversing a bonded set of # NVLinks" in ran.stdout.decode().splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--query-gpu=nam", "--format=csv"], 'Field "nam" is not a valid field to query.'),
        (["--query-gpu=name"], "does not know '--query-gpu=name'"),
        (["-i", "0"], "does not know '-i 0'; it knows: nvidia-smi; nvidia-smi -L;"),
        (["mig", "-dci"], "does not know 'mig -dci'"),
    ],
)
def test_other_arguments_are_refused(machine: SimulatedMachine, arguments: list[str], said: str) -> None:
    code, lines = smi(machine, *arguments, sees=machine.uuids()[2])
    assert code == 2
    assert said in lines[0]


@pytest.mark.parametrize("arguments", [[], ["-L"], ["-q"]])
def test_the_slice_of_a_lost_card(machine: SimulatedMachine, slot: str, arguments: list[str]) -> None:
    machine.lose(machine.uuids()[1])
    lost = "Unable to determine the device handle for GPU 00000000:11:00.0: GPU is lost. Reboot to recover this GPU"
    assert smi(machine, *arguments, sees=slot) == (15, [lost])


def test_a_lost_card_is_no_matter_of_other_cards_slices(machine: SimulatedMachine, slot: str) -> None:
    machine.lose(machine.uuids()[0])
    code, lines = smi(machine, "-L", sees=slot)
    assert (code, len(lines)) == (0, 2)


def test_a_slice_that_is_gone(machine: SimulatedMachine) -> None:
    assert smi(machine, "-L", sees="MIG-00000000-0000-0000-0000-000000000000") == (6, ["No devices were found"])


def test_no_driver() -> None:
    code, lines = smi(SimulatedMachine("1xT4", seed="n", driver=None), sees="GPU-1")
    assert code == 9
    assert "couldn't communicate with the NVIDIA driver" in lines[0]
