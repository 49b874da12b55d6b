"""Builds of driver images in the lab, as the real Job asks for them."""

from tests.support.driver_machine import DriverMachine

from tessera.driver.images import Outcome
from tessera_lab.drivers.driver_catalogue import image_build
from tessera_lab.kubelet.images.catalogue import ImageCatalogue
from tessera_lab.simulation.cost_model import CostModel

COSTS = CostModel(build_seconds=1140)
KERNEL = "5.15.0-69-generic"
TARGET = "registry.local/nvidia/driver:525-5.15.0-69-generic-ubuntu22.04"
ARGV = ("sh", "/context/build.sh", "--build-arg", f"KERNEL_VERSION={KERNEL}", "--build-arg", "DRIVER_VERSION=525.1")


def env(**more: str) -> dict[str, str]:
    return {"TARGET": TARGET, "ARCHITECTURE": "amd64", **more}


async def test_what_was_built_can_be_pulled_and_loads_on_its_kernel(machine: DriverMachine) -> None:
    catalogue = ImageCatalogue(unnamed=None)
    assert await machine.run(image_build(catalogue, COSTS), argv=ARGV, env=env()).ends() == (0, 1140)
    image = catalogue.find(TARGET)
    assert image is not None
    assert image.program is not None
    container = machine.run(image.program, kernel=KERNEL)
    await container.healthy()
    assert machine.machine.loaded_driver == "525.1"


async def test_a_tag_that_architectures_share_keeps_the_others(machine: DriverMachine) -> None:
    catalogue = ImageCatalogue(unnamed=None)
    build = image_build(catalogue, COSTS)
    await machine.run(build, argv=ARGV, env=env(OTHER="arm64")).ends()
    await machine.run(build, argv=ARGV, env=env(OTHER="amd64", ARCHITECTURE="arm64")).ends()
    assert {catalogue.answer(TARGET, each) for each in ("amd64", "arm64")} == {Outcome.FOUND}
    await machine.run(build, argv=ARGV, env=env()).ends()
    assert catalogue.answer(TARGET, "arm64") is Outcome.WRONG_ARCHITECTURE


async def test_a_build_that_fails_pushes_nothing(machine: DriverMachine) -> None:
    catalogue = ImageCatalogue(unnamed=None)
    failing = image_build(catalogue, COSTS, fails=lambda target: f"no kernel package for {target}")
    assert (await machine.run(failing, argv=ARGV, env=env()).ends())[0] == 1
    catalogue.refuse("registry.local/*", Outcome.UNAUTHORIZED)
    refused = machine.run(image_build(catalogue, COSTS), argv=ARGV, env=env())
    assert (await refused.ends())[0] == 1
    assert "the registry says unauthorized" in refused.log[-1]
    nothing = machine.run(image_build(catalogue, COSTS))
    assert (await nothing.ends())[0] == 1
    catalogue.allow("registry.local/*")
    assert catalogue.find(TARGET) is None
