"""The programs beside a driver: driver manager, container toolkit, and validation.

Only work that takes time under any operator happens here. The makers of the pods decide in which order the parts begin
and how they signal each other.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from tessera.agent.base.marker_files import MarkerFiles
from tessera.api.driver.node_status import CUDA_READY, TOOLKIT_READY
from tessera_lab.drivers.driver_containers import Draw, exact_duration
from tessera_lab.kubelet.images.catalogue import ImageProgram
from tessera_lab.kubelet.images.image_programs import FAILED_EXIT, ProgramContext
from tessera_lab.simulation.cost_model import CostModel


def driver_manager(costs: CostModel, *, draw: Draw = exact_duration) -> ImageProgram:
    """NVIDIA's k8s-driver-manager as an init container: unloads the driver that is there, and ends.

    Ends with an error while the driver is in use; it does not drain the node.
    """

    async def run(context: ProgramContext) -> int:
        await context.clock.sleep(draw(costs.manager_seconds))
        if context.host.machine is not None and context.host.machine.loaded_driver is not None:
            await context.clock.sleep(draw(costs.unload_seconds))
            context.host.machine.unload_driver()
            context.log("simulated: the driver was unloaded")
        return 0

    return run


def container_toolkit(costs: CostModel, *, draw: Draw = exact_duration) -> ImageProgram:
    """NVIDIA's container toolkit: configures the container runtime, then stays. Ready when it has."""

    async def run(context: ProgramContext) -> int:
        await context.clock.sleep(draw(costs.toolkit_seconds))
        context.log("simulated: the container runtime is configured")
        context.ready()
        await asyncio.Event().wait()
        raise AssertionError("waits until it is cancelled")

    return run


def tessera_image(costs: CostModel, *, draw: Draw = exact_duration) -> ImageProgram:
    """This project's own image where the lab does not run it for real: its commands beside a driver.

    ``tessera wait-for <marker>`` ends when the marker exists. ``tessera validate`` queries the simulated cards, adds no
    vectors but takes as long, and writes its markers. Other commands do not end by themselves.
    """

    async def run(context: ProgramContext) -> int:
        match context.argv[1:]:
            case ("wait-for", *names):
                return await _wait_for(context, names)
            case ("validate", *_):
                return await _validate(context, costs, draw)
            case _:
                context.ready()
                await asyncio.Event().wait()
                raise AssertionError("waits until it is cancelled")

    return run


async def _wait_for(context: ProgramContext, names: Sequence[str]) -> int:
    if context.host.markers is None:
        context.log("simulated: this node keeps no markers")
        return FAILED_EXIT
    markers = MarkerFiles(context.host.markers)
    wanted = [each for each in names if not each.startswith("-")]
    async with aclosing(markers.changes()) as changes:
        async for _ in changes:
            if all(map(markers.present, wanted)):
                return 0
    raise AssertionError("a folder is watched until that is ended")


async def _validate(context: ProgramContext, costs: CostModel, draw: Draw) -> int:
    machine = context.host.machine
    if machine is None:
        context.log("simulated: no card to validate")
        return FAILED_EXIT
    await context.clock.sleep(draw(costs.nvml_seconds))
    context.log(f"simulated: NVML answers through the container runtime, {len(machine.devices())} cards")
    _write(context, TOOLKIT_READY)
    await context.clock.sleep(draw(costs.cuda_seconds))
    machine.devices()
    context.log("simulated: no vectors were added, since the cards are simulated")
    _write(context, CUDA_READY)
    return 0


def _write(context: ProgramContext, name: str) -> None:
    if context.host.markers is not None:
        markers = MarkerFiles(context.host.markers)
        markers.write(name, f"simulated\n{markers.about_driver()}")
