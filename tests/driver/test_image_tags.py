"""The names under which images are looked for."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import (
    ImageKind,
    ImageQuery,
    SourceError,
    branch,
    candidates,
    kernel_form,
    list_mirror_sources,
    os_forms,
    tags,
)
from tessera.gpu_operator.driver_policy import ImageSource

UBUNTU = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
FEDORA = PoolKey(os_id="fedora", os_version="35", kernel="5.16.13-200.fc35.x86_64", architecture="amd64")
RHEL = PoolKey(os_id="rhel", os_version="9.8", kernel="5.14.0-687.39.1.el9_8.x86_64", architecture="amd64")
RHCOS = PoolKey(
    os_id="rhcos",
    os_version="4.15",
    kernel="5.14.0-284.54.1.el9_2.aarch64+64k",
    architecture="arm64",
    page_kib=64,
    ostree="415.92.202402201450-0",
)
CERN = "510.47.03-fedora35-5.16.13-200.fc35.x86_64"


def asked(source: ImageSource, pool: PoolKey, kind: ImageKind) -> list[str]:
    return [each.reference for each in candidates(ImageQuery(source=source, pool=pool, kind=kind))]


def driver(version: str) -> ImageSource:
    return ImageSource(repository="nvcr.io/nvidia", image="driver", version=version)


@pytest.mark.parametrize(
    ("version", "pool", "kind", "wanted"),
    [
        ("525.125.06", UBUNTU, ImageKind.PRECOMPILED, ["525.125.06-5.15.0-69-generic-ubuntu22.04"]),
        ("525.125.06", UBUNTU, ImageKind.PRECOMPILED_BRANCH, ["525-5.15.0-69-generic-ubuntu22.04"]),
        ("525", UBUNTU, ImageKind.PRECOMPILED, ["525-5.15.0-69-generic-ubuntu22.04"]),
        ("525.125.06", UBUNTU, ImageKind.BUILDER, ["525.125.06-ubuntu22.04"]),
        ("510.47.03", FEDORA, ImageKind.BUILDER, ["510.47.03-fedora35"]),
        (
            "580",
            RHEL,
            ImageKind.PRECOMPILED,
            [
                "580-5.14.0-687.39.1.el9_8.x86_64-rhel9.8",
                "580-5.14.0-687.39.1.el9_8.x86_64-rhel9",
                "580-5.14.0-687.39.1.el9_8.x86_64-rhcos4.22",
            ],
        ),
        ("580.65.06", RHEL, ImageKind.BUILDER, ["580.65.06-rhel9.8", "580.65.06-rhel9"]),
        (
            "550.54.14",
            RHCOS,
            ImageKind.PRECOMPILED,
            [
                "550.54.14-5.14.0-284.54.1.el9_2.aarch64_64k-rhcos4.15",
                "550.54.14-5.14.0-284.54.1.el9_2.aarch64_64k-rhel9.2",
                "550.54.14-5.14.0-284.54.1.el9_2.aarch64_64k-rhel9",
            ],
        ),
        ("latest", UBUNTU, ImageKind.PRECOMPILED_BRANCH, []),
    ],
)
def test_tags_in_order(version: str, pool: PoolKey, kind: ImageKind, wanted: list[str]) -> None:
    assert list(tags(version, pool, kind)) == wanted


@pytest.mark.parametrize(
    ("os_id", "os_version", "ostree", "wanted"),
    [
        ("ubuntu", "24.04", "", ("ubuntu24.04",)),
        ("rocky", "9.4", "", ("rocky9.4", "rocky9")),
        ("ol", "8.10", "", ("ol8.10", "ol8")),
        ("rhel", "10", "", ("rhel10",)),
        ("rhel", "9.6", "", ("rhel9.6", "rhel9")),
        ("rhel", "9.6", "9.6.20250523-0", ("rhel9.6", "rhel9", "rhcos4.21", "rhcos4.20", "rhcos4.19")),
        ("rhel", "9.6", "419.96.202505230000-0", ("rhel9.6", "rhel9", "rhcos4.19")),
        ("rhcos", "4.17", "417.94.202410090854-0", ("rhcos4.17", "rhel9.4", "rhel9")),
        ("rhcos", "4.99", "", ("rhcos4.99",)),
        ("gardenlinux", "1592.4", "", ("gardenlinux0", "gardenlinux1592.4")),
        ("talos", "v1.9.1", "", ("talosv1.9.1",)),
        ("sles", "15.6", "", ("sles15.6",)),
    ],
)
def test_operating_systems_are_named_in_the_ways_that_publishers_use(
    os_id: str, os_version: str, ostree: str, wanted: tuple[str, ...]
) -> None:
    pool = PoolKey(os_id=os_id, os_version=os_version, kernel="6.1.0", architecture="amd64", ostree=ostree)
    assert os_forms(pool, precompiled=False) == wanted


def test_the_mirrored_name_of_the_seed_comes_out_and_then_the_forks_own() -> None:
    source = ImageSource(repository="yourregistry/yourproject", image="driver", version=CERN)
    assert asked(source, FEDORA, ImageKind.BUILDER) == [
        f"yourregistry/yourproject/driver:{CERN}-fedora35",
        f"yourregistry/yourproject/driver:{CERN}",
    ]


def test_a_version_that_names_another_system_is_not_tried_as_it_is() -> None:
    assert tags("510.47.03-ubuntu20.04", UBUNTU, ImageKind.BUILDER) == ("510.47.03-ubuntu20.04-ubuntu22.04",)


def test_a_digest_gets_nothing_appended_and_has_no_branch() -> None:
    source = driver("sha256:" + "a" * 64)
    wanted = ["nvcr.io/nvidia/driver@sha256:" + "a" * 64]
    assert asked(source, UBUNTU, ImageKind.PRECOMPILED) == wanted
    assert asked(source, UBUNTU, ImageKind.BUILDER) == wanted
    assert asked(source, UBUNTU, ImageKind.VERBATIM) == wanted
    assert asked(source, UBUNTU, ImageKind.PRECOMPILED_BRANCH) == []


def test_an_image_alone_is_a_whole_reference() -> None:
    source = ImageSource(image="quay.io/team/driver:mine")
    assert asked(source, UBUNTU, ImageKind.BUILDER) == ["quay.io/team/driver:mine"]
    assert asked(source, UBUNTU, ImageKind.PRECOMPILED_BRANCH) == []


def test_parts_that_do_not_go_together_are_named() -> None:
    with pytest.raises(SourceError, match="image 'driver', version '525': repository must be given too"):
        asked(ImageSource(image="driver", version="525"), UBUNTU, ImageKind.BUILDER)
    with pytest.raises(SourceError, match="all empty"):
        asked(ImageSource(), UBUNTU, ImageKind.VERBATIM)


def test_the_toolkits_version_is_its_tag() -> None:
    source = ImageSource(repository="nvcr.io/nvidia/k8s", image="container-toolkit", version="v1.20.0")
    assert asked(source, UBUNTU, ImageKind.VERBATIM) == ["nvcr.io/nvidia/k8s/container-toolkit:v1.20.0"]


def test_mirrors_have_the_same_names_elsewhere() -> None:
    found = list_mirror_sources(driver("525"), ["registry.local/nvidia/", "10.0.0.1:5000/x"])
    assert [asked(each, UBUNTU, ImageKind.BUILDER) for each in found] == [
        ["registry.local/nvidia/driver:525-ubuntu22.04"],
        ["10.0.0.1:5000/x/driver:525-ubuntu22.04"],
    ]
    whole = list_mirror_sources(ImageSource(image="nvcr.io/nvidia/driver:525"), ["registry.local/nvidia"])
    assert [each.image for each in whole] == ["registry.local/nvidia/driver:525"]


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("525.125.06", "525"), ("525", "525"), ("v1.2", "1"), ("580-open", "580"), ("580abc", None), ("", None)],
)
def test_a_branch_is_the_first_number(version: str, wanted: str | None) -> None:
    assert branch(version) == wanted


def test_five_pools_of_one_cluster_have_five_different_tags() -> None:
    """Ubuntu in two releases, and one RHCOS kernel in three builds, of which NVIDIA's operator makes fewer pools."""
    release = "5.14.0-284.54.1.el9_2"
    pools = [
        UBUNTU,
        PoolKey(os_id="ubuntu", os_version="24.04", kernel="6.8.0-31-generic", architecture="amd64"),
        PoolKey(os_id="rhcos", os_version="4.15", kernel=f"{release}.x86_64", architecture="amd64"),
        PoolKey(os_id="rhcos", os_version="4.15", kernel=f"{release}.aarch64", architecture="arm64"),
        PoolKey(os_id="rhcos", os_version="4.15", kernel=f"{release}.aarch64+64k", architecture="arm64", page_kib=64),
    ]
    assert len({tags("550", pool, ImageKind.PRECOMPILED) for pool in pools}) == 5


@given(st.text(max_size=40))
def test_a_kernel_in_a_tag_has_only_what_tags_may_have_and_stays_itself(kernel: str) -> None:
    form = kernel_form(kernel)
    assert re.fullmatch(r"[A-Za-z0-9_.-]*", form)
    assert len(form) == len(kernel)
    assert kernel_form(form) == form
