"""Builds of driver images in the lab: a Job's container that takes its time and then pushes into the catalogue.

What is built is read from the container as the real script reads it: the target from its environment, kernel and
version from the build arguments.
"""

from collections.abc import Callable, Sequence

from tessera.driver.resolution import Outcome
from tessera_lab.drivers.driver_containers import Draw, exact, precompiled
from tessera_lab.kubelet.images.catalogue import Catalogue, ImageProgram, SimulatedImage
from tessera_lab.kubelet.images.image_programs import FAILED_EXIT, ProgramContext
from tessera_lab.simulation.cost_model import CostModel


def image_build(
    catalogue: Catalogue,
    costs: CostModel,
    *,
    draw: Draw = exact,
    fails: Callable[[str], str] = lambda _target: "",
) -> ImageProgram:
    """buildah, as the Job of a build runs it.

    Args:
        catalogue: where the image is pushed.
        costs: how long it takes.
        draw: chance.
        fails: what is wrong with a target; empty if nothing is.
    """

    async def run(context: ProgramContext) -> int:
        target, architecture = context.env.get("TARGET", ""), context.env.get("ARCHITECTURE", context.architecture)
        kernel = _argument(context.argv, "KERNEL_VERSION")
        version = _argument(context.argv, "DRIVER_VERSION") or _argument(context.argv, "DRIVER_BRANCH")
        if not target or not kernel or not version:
            context.log(f"simulated: TARGET, KERNEL_VERSION and DRIVER_VERSION say what is built; got {context.argv}")
            return FAILED_EXIT
        await context.clock.sleep(draw(costs.build_seconds))
        wrong = fails(target) or _refused(catalogue, target, architecture)
        if wrong:
            context.log(f"simulated: {wrong}")
            return FAILED_EXIT
        catalogue.push(
            target,
            SimulatedImage(
                size_mib=costs.precompiled_mib,
                program=precompiled(version, costs, kernel=kernel, draw=draw),
                architectures=_architectures(catalogue, target, architecture, shared=bool(context.env.get("OTHER"))),
            ),
        )
        context.log(f"simulated: pushed {target} as {catalogue.digest(target)}")
        return 0

    return run


def _argument(argv: Sequence[str], name: str) -> str:
    return next((each.partition("=")[2] for each in argv if each.startswith(f"{name}=")), "")


def _refused(catalogue: Catalogue, target: str, architecture: str) -> str:
    answer = catalogue.answer(target, architecture)
    refused = answer in {Outcome.UNAUTHORIZED, Outcome.UNREACHABLE}
    return f"push of {target}: the registry says {answer.value}" if refused else ""


def _architectures(catalogue: Catalogue, target: str, architecture: str, *, shared: bool) -> tuple[str, ...]:
    """A tag that images of several architectures share keeps the others'."""
    before = catalogue.named(target)
    others = before.architectures if shared and before is not None else ()
    return tuple(dict.fromkeys((*others, architecture)))
