"""Driver containers: load a kernel module into the machine, write a marker, and unload the module when they stop.

As NVIDIA's containers do (gpu-driver-container, ``nvidia-driver init``):

* the marker ``.driver-ctr-ready`` is written by the startup probe and removed by the preStop hook;
* a driver of the same version that is loaded already is kept, another one is unloaded first, and one in use ends the
  container with an error;
* a container that is stopped unloads the module, unless it is in use: then it stays for the next one.

Modules fit one kernel. A container with modules for another kernel ends at once, as ``modprobe`` fails.

On OpenShift the driver's container and the Driver Toolkit's build together through flag files, as NVIDIA's
``ocp_dtk_entrypoint`` does under any operator. The driver's container prepares, sets a flag, and waits for the build;
the Driver Toolkit's container waits for that flag, compiles, and sets the next one. Both poll at intervals of their
own. The flags are in a folder that both mount; in the lab they are beside the node's markers, under the pod's name.
"""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tessera.agent.base.node_files import MarkerFiles
from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY
from tessera.nvml.errors import InUse
from tessera_lab.kubelet.images.catalogue import FAILED_EXIT, ImageProgram, ProgramContext
from tessera_lab.simulation.cost_model import CostModel

#: Arguments of NVIDIA's entry point in the driver's container and in the Driver Toolkit's.
DRIVER_SIDE = "nv-ctr-run-with-dtk"

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


#: Draws a duration around a mean, seconds.
Draw = Callable[[float], float]


def exact_duration(mean: float) -> float:
    """Returns the mean itself, for a world without random durations."""
    return mean


def precompiled_driver(
    version: str, costs: CostModel, *, kernel: str = "", draw: Draw = exact_duration
) -> ImageProgram:
    """A container with finished modules.

    Args:
        version: the driver's, ``525.125.06``.
        costs: how long its steps take.
        kernel: the one that its modules are for; empty for whichever runs.
        draw: chance.
    """

    async def run(context: ProgramContext) -> int:
        if _is_helper(context):
            return await run_until_stopped(context)
        if kernel and kernel != context.host.kernel:
            context.log(f"simulated: modprobe nvidia: the modules are for kernel {kernel}, {context.host.kernel} runs")
            return FAILED_EXIT
        steps = {"installs the driver": draw(costs.install_seconds)}
        return await _run_driver(context, version, steps, costs, draw)

    return run


def building_driver(version: str, costs: CostModel, *, draw: Draw = exact_duration, fails: str = "") -> ImageProgram:
    """A container with sources, which compiles the modules for the kernel that runs.

    Args:
        version: the driver's.
        costs: how long its steps take.
        draw: chance.
        fails: it ends with this message instead of compiling, such as that there are no headers; empty for no failure.
    """

    async def run(context: ProgramContext) -> int:
        if DRIVER_SIDE in context.argv:
            await context.clock.sleep(draw(costs.prepare_seconds))
            await wait_for_build(context)
            return await _run_driver(
                context, version, {"installs the driver": draw(costs.install_seconds)}, costs, draw
            )
        if _is_helper(context):
            return await run_until_stopped(context)
        steps = {f"prepares for kernel {context.host.kernel}": draw(costs.prepare_seconds)}
        if not fails:
            steps["compiles kernel modules"] = draw(costs.compile_seconds)
            steps["installs the driver"] = draw(costs.install_seconds)
        return await _run_driver(context, version, steps, costs, draw, fails=fails)

    return run


def broken_driver(message: str, *, after: float = 0.0) -> ImageProgram:
    """A container that always ends with an error, for broken images.

    Args:
        message: the last line of its log.
        after: seconds until then.
    """

    async def run(context: ProgramContext) -> int:
        await context.clock.sleep(after)
        context.log(f"simulated: {message}")
        return FAILED_EXIT

    return run


def _is_helper(context: ProgramContext) -> bool:
    """True if it is another container with the driver's image (peermem, GDS, Driver Toolkit)."""
    return bool(context.argv) and "init" not in context.argv


async def run_until_stopped(context: ProgramContext) -> int:
    """A program that is ready at once and does no more until its container is stopped."""
    context.ready()
    await asyncio.Event().wait()
    raise AssertionError("waits until it is cancelled")


async def _run_driver(
    context: ProgramContext, version: str, steps: dict[str, float], costs: CostModel, draw: Draw, *, fails: str = ""
) -> int:
    machine = context.host.machine
    if machine is None:
        context.log("simulated: modprobe nvidia: no such device")
        return FAILED_EXIT
    if machine.loaded_driver == version:
        context.log(f"simulated: driver {version} is loaded already and stays")
    else:
        if machine.loaded_driver is not None:
            await context.clock.sleep(draw(costs.unload_seconds))
            machine.unload_driver()
        for step, seconds in steps.items():
            context.log(f"simulated: {step}, {seconds:.1f} s")
            await context.clock.sleep(seconds)
        if fails:
            context.log(f"simulated: {fails}")
            return FAILED_EXIT
        await context.clock.sleep(draw(costs.load_seconds))
        machine.load_driver(version)
    context.log(f"simulated: driver {version} is loaded on kernel {context.host.kernel}")
    if context.host.markers is None:
        context.ready()
        return await _wait_and_unload(context, None, costs, draw)
    markers = MarkerFiles(context.host.markers)
    context.set_startup_hook(lambda: _report_ready(context, markers))
    context.ready()
    return await _wait_and_unload(context, markers, costs, draw)


def _report_ready(context: ProgramContext, markers: MarkerFiles) -> None:
    try:
        markers.write(DRIVER_CONTAINER_READY, "simulated\n")
    except OSError as error:  # another file has that path, so the driver never counts as ready
        context.log(f"simulated: {error}")


async def _wait_and_unload(context: ProgramContext, markers: MarkerFiles | None, costs: CostModel, draw: Draw) -> int:
    assert context.host.machine is not None
    try:
        await asyncio.Event().wait()
    finally:
        if markers is not None:
            markers.remove(DRIVER_CONTAINER_READY)
        await context.clock.sleep(draw(costs.unload_seconds))
        try:
            context.host.machine.unload_driver()
        except InUse as error:
            context.log(f"simulated: {error}; the driver stays loaded")
    raise AssertionError("waits until it is cancelled")
