"""A whole agent on NVIDIA's own binding over a library that a simulated machine stands behind."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from tests.agent.driver.conftest import DriverScene
from tests.support.nvml_metering import MeteringLibrary
from tests.support.searching import SEARCHING

from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.run import run_components
from tessera.agent.wiring import Components
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.replay.recorder import Recorders

GPU = "nvidia.com/gpu"


class RealCards(RealNvml):
    """The real back end, on the clock of the scene."""

    poll_interval = None

    def __init__(self, machine: SimulatedMachine, folder: Path) -> None:
        super().__init__(proc=folder / "proc", sys=folder / "sys")
        self.subscribe = machine.subscribe
        self.open_session = machine.open_session


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedMachine], MeteringLibrary]:
    """Puts the library over a machine."""

    def loaded(machine: SimulatedMachine) -> MeteringLibrary:
        library = MeteringLibrary(machine)
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
        return library

    return loaded


FUNCTIONS = [
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
]
CODES = [4, 8, 10, 11, 15, 16, 28, 999]


#: ``make test`` plays each function with two errors, and each error with some function; ``make soak`` all with all.
@pytest.mark.parametrize(
    ("function", "code"),
    [
        (function, code)
        for number, function in enumerate(FUNCTIONS)
        for code in (CODES if SEARCHING else CODES[number % 4 :: 4])
    ],
)
def test_seven_cards_of_eight_stay_over_a_restart(
    play: Callable[..., None],
    load: Callable[[SimulatedMachine], MeteringLibrary],
    tmp_path: Path,
    function: str,
    code: int,
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n195 nvidiactl\n507 nvidia-uvm\n")

    async def whole(scene: DriverScene) -> None:
        library, bad = load(scene.machine), scene.machine.uuids()[3]

        def start() -> None:
            environment = AgentEnvironment(
                options=scene.options,
                client=scene.user("agent"),
                clock=scene.clock,
                rng=random.Random(1),
                host=None,
                recorders=Recorders(),
            )
            hardware = InlineNvml(RealCards(scene.machine, tmp_path), scene.clock)
            scene.agent = asyncio.create_task(run_components(Components(environment, hardware, scene.seam)))

        await scene.begin(label="", agent=False)
        start()
        await scene.until(lambda: scene.allocatable(GPU, 8))
        library.broken = {(function, bad): code}
        await scene.kill_agent()
        start()
        await scene.until(lambda: scene.allocatable(GPU, 7))
        for _ in range(60):
            await scene.clock.sleep(0.5)
            assert scene.kubelet.ledger.counts() == ({GPU: 8}, {GPU: 7})

    play(whole, "8xA100-40GB", mig=False)
