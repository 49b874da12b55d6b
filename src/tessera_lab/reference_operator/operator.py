"""The reference operator: what it makes, and the programs of its containers.

The operator follows the ClusterPolicy and labelled nodes, and makes its DaemonSets all at once. It sees a node with
cards only once node feature discovery has labelled it. A reconcile goes through all states before any of its changes
takes effect. Deleting the policy deletes its DaemonSets, and nodes then offer no cards.

The programs poll for a marker, then do their work. The polls are here; the lengths of the waits and the driver's
startup probe are in :mod:`tessera_lab.reference_operator.manifests`. The validator's last check (the node counts its
cards) and its CUDA pod are left out: no pod waits for them before it gets a card.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tessera.agent.base.node_files import MarkerFiles
from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_CONTAINER_READY, DRIVER_READY, TOOLKIT_READY
from tessera.clock import Clock
from tessera.driver.node_facts import parse_os_image
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.gpu_operator.policy_objects import read_cluster_policy
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.informer import Informer
from tessera.kube.resources import DAEMONSETS, NAMESPACES, NODES
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginOptions, PreferredRequest
from tessera_lab.drivers.driver_containers import Draw, exact_duration, run_until_stopped
from tessera_lab.kubelet.context import InProcessPlugins
from tessera_lab.kubelet.images.catalogue import FAILED_EXIT, ImageProgram, ProgramContext
from tessera_lab.reference_operator import manifests
from tessera_lab.reference_operator.manifests import (
    NAMESPACE,
    PRESENT,
    REFERENCE,
    ReferenceWaits,
    driver_daemonset,
    operand_daemonsets,
)
from tessera_lab.simulation.cost_model import CostModel

_NFD = "feature.node.kubernetes.io/"
_CARDS = (f"{_NFD}pci-10de.present", f"{_NFD}pci-0302_10de.present")
#: Written by the toolkit's container here; with the real one a container of the runtime class starts.
_CONFIGURED = ".runtime-configured"
RESOURCE = "nvidia.com/gpu"


class ReferenceOperator:
    """The operator's own process.

    Args:
        client: its calls.
        clock: the time.
        costs: how long a reconcile takes.
        driver_toolkit: image of OpenShift's Driver Toolkit, for drivers that are built; empty elsewhere.
        waits: what it waits for.
        draw: draws durations.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        costs: CostModel,
        *,
        driver_toolkit: str = "",
        waits: ReferenceWaits = REFERENCE,
        draw: Draw = exact_duration,
    ) -> None:
        self._client = client
        self._clock = clock
        self._costs = costs
        self._driver_toolkit = driver_toolkit
        self._waits = waits
        self._draw = draw
        rng = random.Random(0)
        self._policies = Informer(client, CLUSTER_POLICIES, clock=clock, rng=rng)
        self._nodes = Informer(client, NODES.as_dicts(), clock=clock, rng=rng)
        self._input_changed = asyncio.Event()
        self._made: set[str] = set()

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._client.apply(NAMESPACES.as_dicts(), NAMESPACE, {})
        for informer in (self._policies, self._nodes):
            informer.add_handler(lambda _event: self._input_changed.set())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._policies.run())
            group.create_task(self._nodes.run())
            await self._policies.wait_synced()
            await self._nodes.wait_synced()
            last: Any = None
            while True:
                await self._input_changed.wait()
                self._input_changed.clear()
                found = self._desired_objects()
                if found != last:
                    last = found
                    await self._reconcile(*found)

    def _desired_objects(self) -> tuple[DriverPolicy | None, tuple[tuple[str, str, str, bool], ...]]:
        """Input of a reconcile: the policy, and for each node with cards its name, kernel, OS tag and label."""
        policies = sorted(self._policies.cache.values(), key=lambda each: each["metadata"]["creationTimestamp"])
        policy = read_cluster_policy(policies[0]).policy if policies else None
        return policy, tuple(sorted(self._with_cards()))

    def _with_cards(self) -> Iterator[tuple[str, str, str, bool]]:
        for node in self._nodes.cache.values():
            labels = node["metadata"].get("labels") or {}
            if any(labels.get(name) == "true" for name in _CARDS):
                info = (node.get("status") or {}).get("nodeInfo") or {}
                release = parse_os_image(info.get("osImage", ""))
                tag = f"{release.id}{release.version}" if release is not None else ""
                name, kernel = node["metadata"]["name"], info.get("kernelVersion", "")
                yield name, kernel, tag, labels.get(PRESENT) == "true"

    async def _reconcile(self, policy: DriverPolicy | None, nodes: tuple[tuple[str, str, str, bool], ...]) -> None:
        desired = self._objects(policy, nodes) if policy is not None else []
        names = {each["metadata"]["name"] for each in desired}
        if self._waits.reconcile and (not names <= self._made or any(not labelled for *_, labelled in nodes)):
            await self._clock.sleep(self._draw(self._costs.reconcile_seconds))
        for name, *_, labelled in nodes:
            if not labelled:
                with suppress(NotFound):
                    await self._client.merge_patch(NODES, name, {"metadata": {"labels": {PRESENT: "true"}}})
        for each in desired:
            if each["metadata"]["name"] not in self._made:
                await self._client.apply(DAEMONSETS.as_dicts(), each["metadata"]["name"], each, NAMESPACE)
        for name in sorted(self._made - names):
            with suppress(NotFound):
                await self._client.delete(DAEMONSETS, name, NAMESPACE, propagation="Background")
        self._made = names

    def _objects(self, policy: DriverPolicy, nodes: tuple[tuple[str, str, str, bool], ...]) -> list[dict[str, Any]]:
        source = policy.source
        repository = f"{source.repository}/{source.image}"
        drivers = []
        for _, kernel, tag, _ in nodes:
            if policy.use_precompiled:
                name = "nvidia-driver-daemonset-" + kernel.replace("_", ".").lower()[:40]
                image = f"{repository}:{source.version}-{kernel}-{tag}"
                selector = {PRESENT: "true", f"{_NFD}kernel-version.full": kernel}
                drivers.append(driver_daemonset(name, image, selector, waits=self._waits))
            else:
                image = f"{repository}:{source.version}-{tag}"
                drivers.append(
                    driver_daemonset(
                        "nvidia-driver-daemonset",
                        image,
                        {PRESENT: "true"},
                        driver_toolkit=self._driver_toolkit,
                        waits=self._waits,
                    )
                )
        unique = {each["metadata"]["name"]: each for each in drivers}
        return [*unique.values(), *operand_daemonsets(self._waits)] if unique else []


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
