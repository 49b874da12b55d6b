"""The build of images for each operating system, and the images that it needs."""

from collections.abc import Callable

import msgspec
import pytest

from tessera.driver.build.families import BuildFamily
from tessera.driver.build.orders import BuildOrder, make_order
from tessera.driver.build.settings import BuildSettings, UnbuildableError
from tessera.driver.driver_sets import PoolKey

Ordered = Callable[..., BuildOrder]


def test_ubuntu_takes_packages_and_rhcos_compiles_in_its_own_toolkit(ordered: Ordered, rhcos: PoolKey) -> None:
    assert ordered().family is BuildFamily.UBUNTU
    assert (ordered().base_image, ordered().builder_image) == ("docker.io/library/ubuntu:22.04", "")
    compiled = ordered(rhcos, "550.54.14")
    assert compiled.family is BuildFamily.RHEL
    assert compiled.base_image == "registry.access.redhat.com/ubi9/ubi:latest"
    assert compiled.builder_image.endswith("/openshift/driver-toolkit:415.92.202402201450-0")


def test_plain_rhel_compiles_in_a_base_image_that_installs_the_headers(rhcos: PoolKey, ordered: Ordered) -> None:
    plain = msgspec.structs.replace(rhcos, os_id="rhel", os_version="9.2", ostree="")
    assert ordered(plain, "550.54.14").builder_image == "registry.access.redhat.com/ubi9/ubi:latest"


def test_rhcos_without_its_version_needs_a_toolkit_by_name(rhcos: PoolKey) -> None:
    unknown = msgspec.structs.replace(rhcos, ostree="")
    with pytest.raises(UnbuildableError, match="which Driver Toolkit fits is not known"):
        make_order(unknown, version="550.54.14", target="registry.local/driver:550")
    settings = BuildSettings(builder_images={rhcos.kernel: "quay.io/dtk:1"})
    assert (
        make_order(unknown, version="550.54.14", target="r.local/d:5", settings=settings).builder_image
        == "quay.io/dtk:1"
    )
