"""The log of nvidia-smi is read whatever it says, and never costs more than its bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.accepted_machine import smi_log

from tessera.accept.machine_files import SmiLogError, parse_smi_log
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


def test_cards_have_the_elements_that_are_compared() -> None:
    first, second = parse_smi_log(smi_log(SimulatedMachine("2xA100-40GB", seed="n")).encode())
    assert (first.pci_bus_id, second.pci_bus_id) == ("00000000:10:00.0", "00000000:11:00.0")
    assert first.values["memory_total"] == "40960 MiB"
    assert first.values["power"] == "60.00 W"
    assert "memory_temperature" not in first.values
    assert "1320223000999" not in str(first)


@pytest.mark.parametrize(
    "power",
    [
        "<power_readings><power_draw>71.5 W</power_draw></power_readings>",
        "<gpu_power_readings><power_draw>71.5 W</power_draw></gpu_power_readings>",
        "<gpu_power_readings><average_power_draw>71.5 W</average_power_draw></gpu_power_readings>",
    ],
)
def test_the_paths_of_older_drivers_are_known(power: str) -> None:
    (card,) = parse_smi_log(f'<nvidia_smi_log><gpu id="1">{power}</gpu></nvidia_smi_log>'.encode())
    assert card.values == {"power": "71.5 W"}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"", "no XML"),
        (b"No devices were found", "no XML"),
        (b"<nvidia_smi_log><gpu>", "no XML"),
        (b'<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>', "declares the entity"),
        (b"<a>" * 1000, "nests more than 32 elements"),
    ],
)
def test_other_output_is_refused(log: bytes, said: str) -> None:
    with pytest.raises(SmiLogError, match=said):
        parse_smi_log(log)


@given(st.binary(max_size=200))
def test_any_bytes_are_cards_or_refused(log: bytes) -> None:
    with contextlib.suppress(SmiLogError):
        assert isinstance(parse_smi_log(log), tuple)
