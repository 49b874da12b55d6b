"""The images of simulated registries, and the registries' answers."""

import pytest

from tessera.driver.images import Outcome
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage, host_of, repository_of

DRIVER = "quay.io/x/driver:525-5.14-rhcos4.13"
BIG, SMALL = SimulatedImage(size_mib=689), SimulatedImage(size_mib=1)


def test_a_repository_named_with_tags_has_these_tags_only() -> None:
    catalogue = ImageCatalogue({DRIVER: BIG})
    assert catalogue.find(DRIVER) is BIG
    assert catalogue.find("quay.io/x/driver:525-5.15-rhcos4.13") is None
    assert catalogue.answer("quay.io/x/driver:535", "amd64") is Outcome.NOT_FOUND


def test_what_nobody_named_is_there_as_well() -> None:
    assert ImageCatalogue({DRIVER: BIG}).find("busybox") == SimulatedImage()
    assert ImageCatalogue({DRIVER: BIG}, unnamed=None).find("busybox") is None
    assert ImageCatalogue({DRIVER: BIG}).find_image("busybox") is None


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("nvcr.io/nvidia/driver", "nvcr.io/nvidia/driver:any"),
        ("nvcr.io/nvidia/*", "nvcr.io/nvidia/driver:any"),
        ("*/k8s/toolkit", "registry.local:5000/nvidia/k8s/toolkit:v1"),
        ("quay.io/x/driver:525-*", "quay.io/x/driver:525-6.8"),
    ],
)
def test_a_pattern_stands_for_what_it_matches(pattern: str, found: str) -> None:
    catalogue = ImageCatalogue({pattern: BIG})
    assert catalogue.find(found) is BIG
    assert catalogue.find(f"{repository_of(found)}@{catalogue.digest(found)}") is BIG


def test_of_several_patterns_the_longest_counts_and_a_whole_reference_before_all() -> None:
    catalogue = ImageCatalogue({"quay.io/*": SMALL, "quay.io/x/*": BIG, "quay.io/x/driver:1": SMALL})
    assert catalogue.find("quay.io/x/driver:2") is BIG
    assert catalogue.find("quay.io/x/driver:1") is SMALL


def test_a_pattern_with_a_tag_makes_other_tags_missing() -> None:
    assert ImageCatalogue({"quay.io/x/driver:525-*": BIG}).find("quay.io/x/driver:535-6.8") is None


def test_a_digest_is_the_tag_that_has_it() -> None:
    catalogue = ImageCatalogue({DRIVER: BIG, "quay.io/x/driver:2": SMALL})
    pinned = f"quay.io/x/driver@{catalogue.digest(DRIVER)}"
    assert catalogue.find(pinned) is BIG
    assert catalogue.digest(pinned) == catalogue.digest(DRIVER)
    assert catalogue.find("quay.io/x/driver@sha256:0") is None


def test_a_push_makes_a_tag_or_another_digest_of_it() -> None:
    catalogue = ImageCatalogue({"quay.io/x/driver:1": SMALL})
    catalogue.push(DRIVER, BIG)
    assert catalogue.find(DRIVER) is BIG
    first = catalogue.digest(DRIVER)
    catalogue.push(DRIVER, BIG)
    assert catalogue.digest(DRIVER) != first
    catalogue.delete(DRIVER)
    assert catalogue.find(DRIVER) is None
    with pytest.raises(ValueError, match="a reference has a tag"):
        catalogue.push("quay.io/x/driver", BIG)


def test_registries_refuse_until_they_are_allowed_again() -> None:
    catalogue = ImageCatalogue({DRIVER: BIG})
    assert catalogue.answer(DRIVER, "amd64") is Outcome.FOUND
    assert catalogue.answer(DRIVER, "arm64") is Outcome.WRONG_ARCHITECTURE
    catalogue.refuse("quay.io/*", Outcome.UNREACHABLE)
    assert catalogue.answer(DRIVER, "amd64") is Outcome.UNREACHABLE
    catalogue.allow("quay.io/*")
    assert catalogue.answer(DRIVER, "amd64") is Outcome.FOUND


def test_time_is_by_the_registry_and_for_unpacking() -> None:
    catalogue = ImageCatalogue(bandwidth={"quay.io": 50}, default_bandwidth=100, unpack=200)
    assert catalogue.transfer_seconds("quay.io/x/y:1", 100) == 2.5
    assert catalogue.transfer_seconds("nvcr.io/x/y:1", 100) == 1.5
    assert ImageCatalogue().transfer_seconds("nvcr.io/x/y:1", 100) == 0


@pytest.mark.parametrize(
    ("reference", "host", "repository"),
    [
        ("busybox", "docker.io", "busybox"),
        ("nvidia/cuda:12", "docker.io", "nvidia/cuda"),
        ("localhost/x:1", "localhost", "localhost/x"),
        ("registry.local:5000/x/y", "registry.local:5000", "registry.local:5000/x/y"),
        ("quay.io/x/y:1@sha256:0", "quay.io", "quay.io/x/y"),
    ],
)
def test_parts_of_a_reference(reference: str, host: str, repository: str) -> None:
    assert (host_of(reference), repository_of(reference)) == (host, repository)
