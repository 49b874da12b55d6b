"""The registries of a cluster with managed drivers: every image that it pulls, and the resolver of driver images.

A scenario adds its driver images: :func:`driver_image` for one with finished modules, :func:`builder_image` for one
that compiles. An :func:`image_build` Job takes its time and pushes a new driver image into the catalogue; it reads its
target from the container's environment, and kernel and driver version from the build arguments, as the real script
does.

The programs beside a driver (driver manager, container toolkit, validation) only take the time that they take under any
operator. The makers of the pods decide in which order the parts begin and how they signal each other.

:class:`SimulatedResolver` takes the place of the real resolver, which uses HTTP. It knows only what the catalogue
names: that a world need not list its ``busybox`` does not make driver images exist. Answers take no time and are never
stale. What a registry refuses is set at the catalogue, so that kubelets' pulls and the resolver's answers agree.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing

from tessera.agent.base.node_files import MarkerFiles
from tessera.api.nodes.node_marks import CUDA_READY, TOOLKIT_READY
from tessera.clock import Clock
from tessera.driver.images import ImageQuery, Outcome, Resolution, SourceError, TriedReference, candidates
from tessera_lab.drivers.driver_containers import Draw, building_driver, exact_duration, precompiled_driver
from tessera_lab.kubelet.images.catalogue import (
    FAILED_EXIT,
    ImageCatalogue,
    ImageProgram,
    ProgramContext,
    SimulatedImage,
)
from tessera_lab.simulation.cost_model import CostModel

#: The cluster's own registry, as OpenShift calls it.
INTERNAL_REGISTRY = "image-registry.openshift-image-registry.svc:5000"
#: Order in which outcomes count if no candidate was found: the least informative first.
_WORST_FIRST = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.WRONG_ARCHITECTURE, Outcome.NOT_FOUND)
_TEXTS = {
    Outcome.FOUND: "found (simulated)",
    Outcome.NOT_FOUND: "the registry has no such tag (simulated)",
    Outcome.UNAUTHORIZED: "the registry wants other credentials (simulated)",
    Outcome.UNREACHABLE: "the registry does not answer (simulated)",
    Outcome.WRONG_ARCHITECTURE: "the registry has it for other architectures only (simulated)",
}


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
    desired = [each for each in names if not each.startswith("-")]
    async with aclosing(markers.changes()) as changes:
        async for _ in changes:
            if all(map(markers.present, desired)):
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


def driver_image(version: str, costs: CostModel, *, kernel: str = "", draw: Draw = exact_duration) -> SimulatedImage:
    """A driver image with finished modules; ``kernel`` as for :func:`precompiled_driver`."""
    return SimulatedImage(
        size_mib=costs.precompiled_mib, program=precompiled_driver(version, costs, kernel=kernel, draw=draw)
    )


def builder_image(version: str, costs: CostModel, *, draw: Draw = exact_duration) -> SimulatedImage:
    """A driver image that compiles on the node."""
    return SimulatedImage(
        size_mib=costs.builder_mib, program=building_driver(version, costs, draw=draw), architectures=("amd64", "arm64")
    )


def build_catalogue(
    costs: CostModel,
    images: Mapping[str, SimulatedImage] | None = None,
    *,
    internal: Collection[str] = (INTERNAL_REGISTRY,),
    draw: Draw = exact_duration,
    kind: type[ImageCatalogue] = ImageCatalogue,
) -> ImageCatalogue:
    """All registries of a world.

    Args:
        costs: sizes and rates.
        images: images besides the toolkit, the driver manager, buildah and this project's image.
        internal: registries (hosts) within the cluster; all others are public.
        draw: draws durations.
        kind: class of the catalogue, such as one that records its answers.
    """
    both = ("amd64", "arm64")
    created = kind(
        {
            "nvcr.io/nvidia/k8s/container-toolkit": SimulatedImage(
                size_mib=costs.toolkit_mib, program=container_toolkit(costs, draw=draw), architectures=both
            ),
            "*/k8s-driver-manager": SimulatedImage(
                size_mib=costs.manager_mib, program=driver_manager(costs, draw=draw), architectures=both
            ),
            "tessera": SimulatedImage(
                size_mib=costs.tessera_mib, program=tessera_image(costs, draw=draw), architectures=both
            ),
            **(images or {}),
        },
        bandwidth=dict.fromkeys(internal, costs.internal_mib_s),
        default_bandwidth=costs.public_mib_s,
        unpack=costs.unpack_mib_s,
        latency=costs.registry_seconds,
        unnamed=SimulatedImage(size_mib=costs.workload_mib, architectures=both),
    )
    created.name("*/buildah/*", SimulatedImage(program=image_build(created, costs, draw=draw), architectures=both))
    return created


def image_build(
    catalogue: ImageCatalogue,
    costs: CostModel,
    *,
    draw: Draw = exact_duration,
    fails: Callable[[str], str] = lambda _target: "",
) -> ImageProgram:
    """Makes the image of buildah, as the Job of a build runs it.

    Args:
        catalogue: receives the pushed image.
        costs: duration of the build.
        draw: draws durations.
        fails: returns the error of a target; empty for none.
    """

    async def run(context: ProgramContext) -> int:
        target, architecture = context.env.get("TARGET", ""), context.env.get("ARCHITECTURE", context.host.architecture)
        kernel = _argument(context.argv, "KERNEL_VERSION")
        version = _argument(context.argv, "DRIVER_VERSION") or _argument(context.argv, "DRIVER_BRANCH")
        if not target or not kernel or not version:
            context.log(f"simulated: TARGET, KERNEL_VERSION and DRIVER_VERSION say what is built; got {context.argv}")
            return FAILED_EXIT
        await context.clock.sleep(draw(costs.build_seconds))
        wrong = fails(target) or _refuse_build(catalogue, target, architecture)
        if wrong:
            context.log(f"simulated: {wrong}")
            return FAILED_EXIT
        catalogue.push(
            target,
            SimulatedImage(
                size_mib=costs.precompiled_mib,
                program=precompiled_driver(version, costs, kernel=kernel, draw=draw),
                architectures=_architectures(catalogue, target, architecture, shared=bool(context.env.get("OTHER"))),
            ),
        )
        context.log(f"simulated: pushed {target} as {catalogue.digest(target)}")
        return 0

    return run


def _argument(argv: Sequence[str], name: str) -> str:
    return next((each.partition("=")[2] for each in argv if each.startswith(f"{name}=")), "")


def _refuse_build(catalogue: ImageCatalogue, target: str, architecture: str) -> str:
    answer = catalogue.answer(target, architecture)
    refused = answer in {Outcome.UNAUTHORIZED, Outcome.UNREACHABLE}
    return f"push of {target}: the registry says {answer.value}" if refused else ""


def _architectures(catalogue: ImageCatalogue, target: str, architecture: str, *, shared: bool) -> tuple[str, ...]:
    """Returns the architectures of a pushed tag; a tag shared by several architectures keeps the others."""
    before = catalogue.find_image(target)
    others = before.architectures if shared and before is not None else ()
    return tuple(dict.fromkeys((*others, architecture)))


class SimulatedResolver:
    """A :class:`~tessera.driver.images.Resolver` on a catalogue.

    Args:
        catalogue: what there is.
        clock: for the time of answers.

    Attributes:
        asked: every query so far, in order.
    """

    def __init__(self, catalogue: ImageCatalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self.asked: list[ImageQuery] = []

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:  # noqa: ARG002 - always fresh
        """See :meth:`.Resolver.resolve`."""
        return self.answer(query)

    def answer(self, query: ImageQuery) -> Resolution:
        """The answer to a query; it takes no time."""
        self.asked.append(query)
        try:
            names = candidates(query)
        except SourceError as error:
            return Resolution(
                outcome=Outcome.NOT_FOUND,
                tried=(TriedReference(reference=query.source.image, outcome=Outcome.NOT_FOUND, text=str(error)),),
                checked=self._clock.now(),
            )
        tried: list[TriedReference] = []
        for name in names:
            outcome = self._query(name.reference, query.pool.architecture)
            tried.append(TriedReference(reference=name.reference, outcome=outcome, text=_TEXTS[outcome]))
            if outcome is Outcome.FOUND:
                image = self._catalogue.find_image(name.reference)
                return Resolution(
                    outcome=outcome,
                    reference=name.reference,
                    digest=self._catalogue.digest(name.reference),
                    tag=name.tag,
                    tried=tuple(tried),
                    checked=self._clock.now(),
                    size_bytes=image.size_bytes if image is not None else 0,
                )
        return Resolution(outcome=_matches_policy(tried), tried=tuple(tried), checked=self._clock.now())

    def _query(self, reference: str, architecture: str) -> Outcome:
        outcome = self._catalogue.answer(reference, architecture)
        named = self._catalogue.find_image(reference) is not None
        return Outcome.NOT_FOUND if outcome is Outcome.FOUND and not named else outcome


def _matches_policy(tried: Sequence[TriedReference]) -> Outcome:
    seen = {each.outcome for each in tried}
    return next((each for each in _WORST_FIRST if each in seen), Outcome.NOT_FOUND)
