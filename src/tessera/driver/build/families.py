"""The ways to build images for an operating system, and the other images that each way needs.

There are two ways. On Ubuntu nothing is compiled: Canonical publishes signed modules for each kernel and driver branch.
On RHEL and its relatives an image with the kernel's headers compiles the modules; OpenShift calls this image the Driver
Toolkit. Other systems are refused.
"""

import re
from enum import Enum

from tessera.driver.build.settings import BuildSettings, UnbuildableError
from tessera.driver.driver_sets import PoolKey

#: OpenShift's own registry has a Driver Toolkit for each RHCOS version that the cluster's release contains.
_TOOLKIT_STREAM = "image-registry.openshift-image-registry.svc:5000/openshift/driver-toolkit"


class BuildFamily(Enum):
    """The way to build an operating system's images."""

    UBUNTU = "ubuntu"
    RHEL = "rhel"


#: The way to build, by ``ID`` of os-release.
_FAMILIES = {
    "ubuntu": BuildFamily.UBUNTU,
    "rhel": BuildFamily.RHEL,
    "rhcos": BuildFamily.RHEL,
    "centos": BuildFamily.RHEL,
    "rocky": BuildFamily.RHEL,
    "almalinux": BuildFamily.RHEL,
    "ol": BuildFamily.RHEL,
}


def family_of(pool: PoolKey) -> BuildFamily:
    """The way to build images for a pool.

    Raises:
        UnbuildableError: there is no way for its operating system.
    """
    family = _FAMILIES.get(pool.os_id)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnbuildableError(f"{pool.text}: no way to build for {pool.os_id!r} is known; known are {known}")
    return family


def toolkit_image(pool: PoolKey) -> str:
    """The Driver Toolkit in OpenShift's own registry that fits a pool; empty if the RHCOS version is not known."""
    return f"{_TOOLKIT_STREAM}:{pool.ostree}" if pool.ostree else ""


def base_image(pool: PoolKey, settings: BuildSettings) -> str:
    """The base image of the finished image; the settings name base images by ``ubuntu22.04`` or ``rhel9``.

    Raises:
        UnbuildableError: the pool and the settings do not determine it.
    """
    if family_of(pool) is BuildFamily.UBUNTU:
        system, default = f"ubuntu{pool.os_version}", f"docker.io/library/ubuntu:{pool.os_version}"
    else:
        major = _rhel_major(pool)
        system, default = f"rhel{major}", f"registry.access.redhat.com/ubi{major}/ubi:latest"
    return settings.base_images.get(system) or default


def builder_image(pool: PoolKey, settings: BuildSettings) -> str:
    """The image with the kernel's headers that compiles; without a Driver Toolkit, a base image that can install them.

    Raises:
        UnbuildableError: the pool and the settings do not determine it.
    """
    given = settings.builder_images.get(pool.kernel) or toolkit_image(pool)
    if not given and pool.os_id == "rhcos":
        raise UnbuildableError(
            f"{pool.text}: which Driver Toolkit fits is not known; name the RHCOS version "
            "(tessera driver build --rhcos) or the toolkit's image (--dtk-image; for the controller "
            "--build-dtk-image KERNEL=IMAGE)"
        )
    return given or base_image(pool, settings)


def _rhel_major(pool: PoolKey) -> str:
    """``9`` for RHEL 9.4 and RHCOS 4.15. The kernel's name has it (``.el9_2``); the OpenShift version does not."""
    found = re.search(r"\.el(\d+)", pool.kernel)
    if found:
        return found[1]
    if pool.os_id == "rhcos":
        raise UnbuildableError(
            f"kernel {pool.kernel!r} does not name the RHEL that it is of (.el9); nothing can be built"
        )
    return pool.os_version.split(".", 1)[0]
