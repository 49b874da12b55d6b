"""``tessera accept``: lines, JSON and exit codes, on simulated cards and through NVIDIA's binding."""

import json
from pathlib import Path

import pynvml
import pytest
from tests.support.accepted_machine import write_machine
from tests.support.nvml_metering import MeteringLibrary

from tessera.accept import acceptance, machine_files
from tessera.accept.document import read_document
from tessera.accept.machine_files import MachineFiles
from tessera.cli.main import main
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedMachine:
    """The machine on which the command runs: two A100 behind NVIDIA's binding."""
    machine = SimulatedMachine("2xA100-40GB", seed="node-1")
    monkeypatch.setattr(pynvml, "nvmlLib", MeteringLibrary(machine))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    places = write_machine(tmp_path, machine)

    def files(**_: object) -> MachineFiles:
        return places

    assert acceptance.__name__  # imported before the name is replaced
    monkeypatch.setattr(machine_files, "MachineFiles", files)
    return machine


def test_a_machine_that_is_well_has_one_line_for_each_check(
    machine: SimulatedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accept"]) == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "2 cards: NVIDIA A100-SXM4-40GB"
    assert [line.split()[:2] for line in lines if "ok " not in line[:3]] == [["absent", "fabric"]]
    assert lines[0] == "ok      cards       NVML 2, readable 2, PCI functions 2, device files 2"
    assert "names no machine" in last


def test_a_failed_check_is_exit_code_2_and_names_the_card(
    machine: SimulatedMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dev/nvidia1").unlink()
    assert main(["accept"]) == 2
    assert "failed  cards       NVML 2, readable 2, PCI functions 2, device files 1" in capsys.readouterr().out


def test_the_json_is_a_document_that_names_no_machine(
    machine: SimulatedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accept", "-o", "json"]) == 0
    text = capsys.readouterr().out
    assert read_document(text.encode(), "accept.json").facts.cards[1].uuid.endswith("-000000000002")
    assert machine.uuids()[0] not in text
    assert main(["accept", "-o", "json", "--identified"]) == 0
    assert machine.uuids()[0] in capsys.readouterr().out


def test_simulated_cards_are_called_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "--simulate", "1xH100-80GB"]) == 0
    assert capsys.readouterr().out.startswith("1 card (simulated): NVIDIA H100 80GB HBM3\n")
    assert main(["accept", "--simulate", "1xH100-80GB", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["simulated"] is True


def test_a_machine_without_a_driver_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    assert main(["accept"]) == 1
    assert "the NVIDIA driver is not installed" in capsys.readouterr().err
