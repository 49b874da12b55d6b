"""How the images of an operating system are built, and which other images that takes.

Two ways are known. On Ubuntu nothing is compiled: Canonical publishes signed modules for each kernel and driver branch.
On RHEL and its relatives modules are compiled in an image that has the kernel's headers, which OpenShift calls the
Driver Toolkit. Other systems are refused.
"""

import re
from enum import Enum

from tessera.driver.build.settings import BuildSettings, UnbuildableError
from tessera.driver.pool import PoolKey

#: OpenShift's own registry has a Driver Toolkit for each version of RHCOS that the cluster's release knows.
_TOOLKIT_STREAM = "image-registry.openshift-image-registry.svc:5000/openshift/driver-toolkit"


class Family(Enum):
    """How an operating system's images are built."""

    UBUNTU = "ubuntu"
    RHEL = "rhel"


#: ``ID`` of os-release to the way of building.
_FAMILIES = {
    "ubuntu": Family.UBUNTU,
    "rhel": Family.RHEL,
    "rhcos": Family.RHEL,
    "centos": Family.RHEL,
    "rocky": Family.RHEL,
    "almalinux": Family.RHEL,
    "ol": Family.RHEL,
}


def family_of(pool: PoolKey) -> Family:
    """How images for a pool are built.

    Raises:
        UnbuildableError: no way is known.
    """
    family = _FAMILIES.get(pool.os_id)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnbuildableError(f"{pool.text}: no way to build for {pool.os_id!r} is known; known are {known}")
    return family


def toolkit_image(pool: PoolKey) -> str:
    """The Driver Toolkit in OpenShift's own registry that fits a pool; empty where no version of RHCOS is known."""
    return f"{_TOOLKIT_STREAM}:{pool.ostree}" if pool.ostree else ""


def base_image(pool: PoolKey, settings: BuildSettings) -> str:
    """What a finished image stands on; the settings name images by ``ubuntu22.04`` or ``rhel9``.

    Raises:
        UnbuildableError: it cannot be known.
    """
    if family_of(pool) is Family.UBUNTU:
        system, default = f"ubuntu{pool.os_version}", f"docker.io/library/ubuntu:{pool.os_version}"
    else:
        major = _rhel_major(pool)
        system, default = f"rhel{major}", f"registry.access.redhat.com/ubi{major}/ubi:latest"
    return settings.base_images.get(system) or default


def builder_image(pool: PoolKey, settings: BuildSettings) -> str:
    """What compiles, having the kernel's headers; without a Driver Toolkit a base image that can install them.

    Raises:
        UnbuildableError: it cannot be known.
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
    """``9`` of RHEL 9.4 and of RHCOS 4.15: the kernel names it (``.el9_2``), a version of OpenShift does not."""
    found = re.search(r"\.el(\d+)", pool.kernel)
    if found:
        return found[1]
    if pool.os_id == "rhcos":
        raise UnbuildableError(
            f"kernel {pool.kernel!r} does not name the RHEL that it is of (.el9); nothing can be built"
        )
    return pool.os_version.split(".", 1)[0]
