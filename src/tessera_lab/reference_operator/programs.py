"""Programs of the reference operator's containers: they poll for a marker, then do their work.

The lengths of the waits are in :mod:`tessera_lab.reference_operator.manifests`, the polls are here, and the driver's
startup probe is in its DaemonSet (:mod:`tessera_lab.reference_operator.manifests`). The validator's last check (the
node counts its cards) and its CUDA pod are left out: no pod waits for them before it gets a card.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tessera.agent.base.node_files import MarkerFiles
from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_CONTAINER_READY, DRIVER_READY, TOOLKIT_READY
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginOptions, PreferredRequest
from tessera_lab.drivers.driver_containers import Draw, exact_duration, run_until_stopped
from tessera_lab.kubelet.context import InProcessPlugins
from tessera_lab.kubelet.images.catalogue import FAILED_EXIT, ImageProgram, ProgramContext
from tessera_lab.reference_operator import manifests
from tessera_lab.reference_operator.manifests import REFERENCE, ReferenceWaits
from tessera_lab.simulation.cost_model import CostModel

#: Written by the toolkit's container here; with the real one a container of the runtime class starts.
_CONFIGURED = ".runtime-configured"

RESOURCE = "nvidia.com/gpu"


def validator_program(
    costs: CostModel, *, waits: ReferenceWaits = REFERENCE, draw: Draw = exact_duration
) -> ImageProgram:
    """The validator's image, by ``COMPONENT``; ``wait`` for a client's init container that looks for one marker.

    Operands are in it, too, where they have no images of their own (:func:`device_plugin_program`,
    :func:`.run_until_stopped`).
    """
    plugin = device_plugin_program(costs, waits=waits, draw=draw)

    async def run(context: ProgramContext) -> int:
        if context.host.markers is None:
            return FAILED_EXIT
        markers = MarkerFiles(context.host.markers)
        match context.env.get("COMPONENT"):
            case "driver":
                await _poll(context, markers, DRIVER_CONTAINER_READY, waits.validator_poll)
                if waits.proves_driver:
                    await context.clock.sleep(draw(costs.nvml_seconds))
                markers.write(DRIVER_READY, "simulated\n")
            case "toolkit":
                await _poll(context, markers, _CONFIGURED, waits.validator_poll)
                await context.clock.sleep(draw(costs.nvml_seconds))
                markers.write(TOOLKIT_READY, "simulated\n")
            case "cuda":
                await context.clock.sleep(draw(costs.cuda_seconds))
                markers.write(CUDA_READY, "simulated\n")
            case "wait":
                await _poll(
                    context, markers, TOOLKIT_READY if waits.starts_plugin else CUDA_READY, waits.validator_poll
                )
            case manifests.DEVICE_PLUGIN:
                return await plugin(context)
            case manifests.OTHER:
                return await run_until_stopped(context)
            case _:
                return await _run_until_stopped(context, markers, CUDA_READY, TOOLKIT_READY, DRIVER_READY)
        return 0

    return run


def toolkit_program(
    costs: CostModel, *, waits: ReferenceWaits = REFERENCE, draw: Draw = exact_duration
) -> ImageProgram:
    """The container toolkit under upstream's entry point: poll, sleep, install."""

    async def run(context: ProgramContext) -> int:
        if context.host.markers is None:
            return FAILED_EXIT
        markers = MarkerFiles(context.host.markers)
        await _poll(context, markers, DRIVER_READY, waits.toolkit_poll)
        await context.clock.sleep(waits.toolkit_sleep)
        await context.clock.sleep(draw(costs.toolkit_seconds))
        markers.write(_CONFIGURED, "simulated\n")
        return await _run_until_stopped(context, markers, _CONFIGURED)

    return run


def device_plugin_program(
    costs: CostModel, *, waits: ReferenceWaits = REFERENCE, draw: Draw = exact_duration
) -> ImageProgram:
    """The device plugin: registers whole cards once it has started."""

    async def run(context: ProgramContext) -> int:
        machine, plugins = context.host.machine, context.host.plugins
        if machine is None or not isinstance(plugins, InProcessPlugins):
            context.log("simulated: the reference's device plugin runs in labs without sockets only")
            return FAILED_EXIT
        if waits.starts_plugin:
            await context.clock.sleep(draw(costs.plugin_seconds))
        context.ready()
        await plugins.bus.serve(_WholeCardPlugin(machine.uuids()))
        return 0

    return run


async def _poll(context: ProgramContext, markers: MarkerFiles, name: str, seconds: float) -> None:
    while not markers.present(name):
        await context.clock.sleep(seconds)


async def _run_until_stopped(context: ProgramContext, markers: MarkerFiles, *written: str) -> int:
    """Runs until it is stopped; its preStop hook takes its markers away."""
    try:
        return await run_until_stopped(context)
    finally:
        for name in written:
            markers.remove(name)


class _WholeCardPlugin:
    """A device plugin that offers each card as one device."""

    resource_name = RESOURCE
    options = PluginOptions()

    def __init__(self, uuids: Sequence[str]) -> None:
        self._devices = [Device(id=uuid) for uuid in uuids]

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        yield self._devices
        await asyncio.Event().wait()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [request.available[: request.size] for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        return [ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}) for ids in requests]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        del device_ids
