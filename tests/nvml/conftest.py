"""Simulated machines of a few cards, and a driver library in front of one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from tests.support.nvml_library import NvmlLibrary

from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


@pytest.fixture
def machine() -> SimulatedMachine:
    """Two A100, MIG mode on."""
    return SimulatedMachine("2xA100-40GB", seed="node-1", mig=True)


@pytest.fixture
def library(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> NvmlLibrary:
    """NVIDIA's library over ``machine``, loaded by the real binding."""
    library = NvmlLibrary(machine)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return library


@pytest.fixture
def real(library: NvmlLibrary, tmp_path: Path) -> Iterator[RealNvml]:
    """The real back end over ``machine``."""
    nvml = RealNvml(proc=tmp_path / "proc", sys=tmp_path / "sys")
    yield nvml
    nvml.close()
    assert library.opened == 0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "cards.json"


DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
234 nvidia-caps
507 nvidia-uvm

Block devices:
259 blkext
  8 nvidia-caps
"""


@pytest.fixture
def proc(tmp_path: Path) -> Callable[[str], None]:
    """Writes the driver's files in ``/proc``, with these capabilities."""

    def write(minors: str) -> None:
        (tmp_path / "proc/driver/nvidia-caps").mkdir(parents=True)
        (tmp_path / "proc/devices").write_text(DEVICES)
        (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text(minors)

    return write
