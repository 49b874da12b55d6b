"""A simulated machine, and the real back end over a library that measures it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from tests.support.nvml_library import BRANCHES
from tests.support.nvml_metering import MeteringLibrary

from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

Pair = tuple[RealNvml, SimulatedMachine, MeteringLibrary]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Makes a simulated machine and the real back end over it; no GPM sample may be left at the end.

    The library of a ``driver`` of :data:`.BRANCHES` lacks the functions that its branch lacks.
    """
    made: list[tuple[RealNvml, MeteringLibrary]] = []

    def make(cards: str, *, mig: bool = False, driver: str = "580.65.06") -> Pair:
        machine = SimulatedMachine(cards, seed="node-1", mig=mig, now=lambda: 0.0, driver=driver)
        library = MeteringLibrary(machine)
        library.without = set(BRANCHES[driver])
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
        real = RealNvml(proc=tmp_path, sys=tmp_path)
        made.append((real, library))
        return real, machine, library

    yield make
    for real, library in made:
        real.close()
        assert library.samples == {}
