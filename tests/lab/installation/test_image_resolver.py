"""The resolver over a simulated world answers as one over real registries would."""

import pytest

from tessera.clock import SystemClock
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome
from tessera.gpu_operator.driver_policy import ImageSource
from tessera_lab.drivers.driver_catalogue import SimulatedResolver
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage

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
