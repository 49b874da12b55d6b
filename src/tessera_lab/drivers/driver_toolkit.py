"""Building on OpenShift: the driver's container and the Driver Toolkit's hand work to each other through flag files.

As NVIDIA's ``ocp_dtk_entrypoint`` does it, whoever made the pod: the driver's container prepares and waits for the
build; the Driver Toolkit's container looks for what was prepared, compiles, and says so. Both look at intervals of
their own. Flags lie in a folder that both mount; here they lie beside the node's markers, under the pod's name.
"""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tessera_lab.kubelet.images.catalogue import ImageProgram
from tessera_lab.kubelet.images.image_programs import FAILED_EXIT, ProgramContext
from tessera_lab.simulation.cost_model import CostModel

#: Arguments of NVIDIA's entry point in the driver's container and in the Driver Toolkit's.
DRIVER_SIDE = "nv-ctr-run-with-dtk"
BUILD_SIDE = "dtk-build-driver"

#: How often the Driver Toolkit's container looks for work is written in its pod.
_LOOKS = re.compile(r"\bsleep (\d+)\b")
#: The driver's container looks for the build's begin, and for its end, so often, seconds (NVIDIA's script).
DRIVER_LOOKS = 15.0


def driver_toolkit(costs: CostModel, *, draw: Callable[[float], float] = lambda mean: mean) -> ImageProgram:
    """The Driver Toolkit's image: compiles when it is asked to by the driver's container of its pod."""

    async def run(context: ProgramContext) -> int:
        prepared, started, built = _flags(context)
        if prepared is None or started is None or built is None:
            context.log("simulated: this node keeps no files")
            return FAILED_EXIT
        found = _LOOKS.search(" ".join(context.argv))
        while not prepared.exists():
            await context.clock.sleep(float(found[1]) if found else 1.0)
        started.touch()
        context.log(f"simulated: compiles kernel modules for {context.host.kernel}")
        await context.clock.sleep(draw(costs.compile_seconds))
        built.touch()
        context.ready()
        await asyncio.Event().wait()
        raise AssertionError("waits until it is cancelled")

    return run


async def wait_for_build(context: ProgramContext) -> None:
    """The driver's side: says that it has prepared, then waits for the modules."""
    prepared, started, built = _flags(context)
    if prepared is None or started is None or built is None:
        raise ValueError("the node keeps no files, so that nobody can build for the driver's container")
    for flag in (started, built):
        flag.unlink(missing_ok=True)
    prepared.touch()
    context.log("simulated: waits for the Driver Toolkit")
    for flag in (started, built):
        while not flag.exists():
            await context.clock.sleep(DRIVER_LOOKS)


def _flags(context: ProgramContext) -> tuple[Path | None, Path | None, Path | None]:
    if context.host.markers is None:
        return None, None, None
    names = ("dir_prepared", "driver_build_started", "driver_built")
    prepared, started, built = (context.host.markers / f".{context.pod.name}.{name}" for name in names)
    return prepared, started, built
