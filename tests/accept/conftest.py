"""A machine of two H100 whose NVML is the real binding, and its files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from tests.support.accepted_machine import write_machine
from tests.support.nvml_metering import MeteringLibrary

from tessera.accept.acceptance import read_facts
from tessera.accept.facts import Facts
from tessera.accept.machine_files import MachineFiles
from tessera.clock import SystemClock
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xH100-80GB", seed="node-1")


@pytest.fixture
def library(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> MeteringLibrary:
    library = MeteringLibrary(machine)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return library


@pytest.fixture
def files(machine: SimulatedMachine, tmp_path: Path) -> MachineFiles:
    return write_machine(tmp_path, machine)


@pytest.fixture
def nvml(library: MeteringLibrary, files: MachineFiles) -> Iterator[RealNvml]:
    nvml = RealNvml(proc=files.proc, sys=files.sys)
    yield nvml
    nvml.close()
    assert library.opened == 0


@pytest.fixture
def read(nvml: RealNvml, files: MachineFiles) -> Callable[[], Facts]:
    """Reads the machine, as it is when the function is called."""
    return lambda: read_facts(nvml, SystemClock(), files=files)
