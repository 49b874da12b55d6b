"""A world in which drivers are managed has what that takes, at its declared rates; images resolve."""

import pytest

from tessera.clock import SystemClock
from tessera.driver.build.orders import BUILDAH_IMAGE
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome
from tessera.gpu_operator.driver_policy import ImageSource
from tessera_lab.drivers.driver_catalogue import (
    INTERNAL_REGISTRY,
    SimulatedResolver,
    build_catalogue,
    builder_image,
    driver_image,
)
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage
from tessera_lab.simulation.cost_model import CostModel

COSTS = CostModel(public_mib_s=50, internal_mib_s=200, unpack_mib_s=100, toolkit_mib=130, precompiled_mib=600)
DRIVER = "quay.io/x/driver:525-5.14-rhcos4.13"


@pytest.mark.parametrize(
    ("reference", "architectures"),
    [
        ("nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", ["amd64", "arm64"]),
        ("nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.12.0", ["amd64", "arm64"]),
        ("tessera:0.1.0", ["amd64", "arm64"]),
        (BUILDAH_IMAGE, ["amd64", "arm64"]),
        (DRIVER, ["amd64"]),
    ],
)
def test_each_part_has_an_image_with_a_program(reference: str, architectures: list[str]) -> None:
    world = build_catalogue(COSTS, {DRIVER: driver_image("525.125.06", COSTS)})
    image = world.find_image(reference)
    assert image is not None
    assert image.program is not None
    answers = [each for each in ("amd64", "arm64") if world.answer(reference, each) is Outcome.FOUND]
    assert answers == architectures


def test_a_builder_runs_on_every_architecture() -> None:
    world = build_catalogue(COSTS, {"nvcr.io/nvidia/driver:525-rhcos4.13": builder_image("525.125.06", COSTS)})
    assert world.answer("nvcr.io/nvidia/driver:525-rhcos4.13", "arm64") is Outcome.FOUND


def test_the_cluster_s_registry_is_nearer() -> None:
    world = build_catalogue(COSTS)
    assert world.transfer_seconds(DRIVER, 600) == 12 + 6
    assert world.transfer_seconds(f"{INTERNAL_REGISTRY}/x/driver:1", 600) == 3 + 6


def test_an_image_that_was_not_named_is_a_workload_s() -> None:
    image = build_catalogue(COSTS).find("quay.io/somebody/app:1")
    assert image is not None
    assert image.size_mib == COSTS.workload_mib
    assert image.program is None


KERNEL = "5.14.0-284.54.1.el9_2.x86_64"
POOL = PoolKey(os_id="rhcos", os_version="4.13", kernel=KERNEL, architecture="amd64")
SOURCE = ImageSource(repository="quay.io/vemporop", image="nvidia-gpu-driver", version="525.125.06")
REFERENCE = f"quay.io/vemporop/nvidia-gpu-driver:525.125.06-{KERNEL}-rhcos4.13"


def query(kind: ImageKind = ImageKind.PRECOMPILED, source: ImageSource = SOURCE) -> ImageQuery:
    return ImageQuery(source=source, pool=POOL, kind=kind)


async def test_what_is_named_is_found_and_pinned() -> None:
    catalogue = ImageCatalogue({REFERENCE: SimulatedImage(size_mib=2)})
    found = await SimulatedResolver(catalogue, SystemClock()).resolve(query())
    assert (found.outcome, found.reference, found.size_bytes) == (Outcome.FOUND, REFERENCE, 2 << 20)
    assert catalogue.find(found.pinned) is catalogue.find(REFERENCE)


async def test_what_is_not_named_is_not_found_though_it_could_be_pulled() -> None:
    registry = SimulatedResolver(ImageCatalogue(), SystemClock())
    answer = await registry.resolve(query())
    assert answer.outcome is Outcome.NOT_FOUND
    assert answer.tried[0].reference == REFERENCE
    assert registry.asked == [query()]


@pytest.mark.parametrize("outcome", [Outcome.UNAUTHORIZED, Outcome.UNREACHABLE, Outcome.WRONG_ARCHITECTURE])
async def test_a_refusal_counts_before_what_is_not_there(outcome: Outcome) -> None:
    catalogue = ImageCatalogue({REFERENCE: SimulatedImage()})
    catalogue.refuse(REFERENCE, outcome)
    answer = await SimulatedResolver(catalogue, SystemClock()).resolve(query())
    assert answer.outcome is outcome
    assert len(answer.tried) > 1


async def test_a_source_in_halves_is_said_to_be_one() -> None:
    halves = ImageSource(repository="quay.io/vemporop", image="nvidia-gpu-driver")
    answer = await SimulatedResolver(ImageCatalogue(), SystemClock()).resolve(query(source=halves))
    assert answer.outcome is Outcome.NOT_FOUND
    assert answer.tried[0].text
