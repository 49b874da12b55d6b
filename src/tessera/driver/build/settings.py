"""Settings of driver image builds, and the checks of every value that goes into a build order.

Kernel, version and image references end up in shell scripts and in the API server. They come from node labels and from
objects that others write, so a value of the wrong form is refused here, and only here. A form proves that a value is
harmless, not that such an image exists.
"""

import re
from collections.abc import Mapping

import msgspec

from tessera.driver.pool import PoolKey
from tessera.limits import ECHOED


class UnbuildableError(ValueError):
    """Nothing can be built from this; the text says why and what to do."""


class Form(msgspec.Struct, frozen=True):
    """How a value has to look, and what to write instead of one that does not."""

    pattern: re.Pattern[str]
    advice: str

    def require(self, value: str, what: str) -> None:
        """Refuses a value that does not look so.

        Args:
            value: what was written.
            what: what it is, for the message.

        Raises:
            UnbuildableError: it does not.
        """
        if not self.pattern.fullmatch(value):
            raise UnbuildableError(f"{what} {value[:ECHOED]!r} is not of the form that it must have; {self.advice}")


_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?")

VERSION = Form(re.compile(r"\d{3}(\.\d{1,4}){0,2}"), "write a version like 525.125.06 or a branch like 525")
KERNEL = Form(re.compile(r"[0-9][A-Za-z0-9._+~-]{0,127}"), "write what uname -r says")
_OS = Form(re.compile(r"[a-z][a-z0-9_-]{0,31}"), "write the ID of os-release")
_OS_VERSION = Form(re.compile(r"[0-9][0-9A-Za-z.]{0,15}"), "write the VERSION_ID of os-release")
_OSTREE = Form(re.compile(r"[0-9A-Za-z.-]{0,64}"), "write the OSTREE_VERSION of os-release")
#: Of a reference: registry and path, and tag or digest. Not the whole grammar, but nothing outside of it.
IMAGE = Form(
    re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,254}(@sha256:[0-9a-f]{64})?"),
    "write registry/path:tag or registry/path@sha256:…",
)
TARGET = Form(
    re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,200}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"), "write registry/path/image:tag"
)
#: What base images are told apart by, see :func:`tessera.driver.build.families.base_image`.
SYSTEM = Form(
    re.compile(r"ubuntu[0-9]{2}\.[0-9]{2}|rhel[0-9]{1,2}"), "write ubuntu22.04 or rhel9, which RHCOS 4.15 is, too"
)
SECRET = Form(_NAME, "write the name of a Secret")
CONFIG_MAP = Form(_NAME, "write its name")
URL = Form(re.compile(r"https?://[A-Za-z0-9._:/-]{1,200}"), "write http(s)://host/path")

#: Architectures as registries say them, and as kernels do.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def require_pool(pool: PoolKey) -> None:
    """Refuses a pool that nodes' labels could have made up.

    Raises:
        UnbuildableError: a part of it is not what it should be.
    """
    _OS.require(pool.os_id, "operating system")
    _OS_VERSION.require(pool.os_version, "version of the operating system")
    KERNEL.require(pool.kernel, "kernel")
    _OSTREE.require(pool.ostree, "version of RHCOS")
    if pool.architecture not in ARCHITECTURES:
        raise UnbuildableError(f"architecture {pool.architecture!r} of {pool.text}: only amd64 and arm64 are known")


#: Where NVIDIA publishes the ``.run`` files, ``<url>/<version>/NVIDIA-Linux-<arch>-<version>.run``.
DOWNLOADS = "https://us.download.nvidia.com/tesla"
#: Runs the build. The project's own image of buildah, which has a user ``build`` (1000) for work without root.
BUILDAH_IMAGE = "quay.io/buildah/stable:v1.42.2"


class BuildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an administrator may say about building; everything has a default.

    Attributes:
        buildah_image: what the Job runs.
        base_images: what the finished image stands on, by ``ubuntu22.04`` or ``rhel9``.
        builder_images: what compiles, by the whole kernel; only for RHEL and its relatives.
        downloads: where NVIDIA's ``.run`` files are found.
        nvswitch: fabric manager and what belongs to it are put in.
        tls_verify: the registry's certificate is checked.
        push_secret: Secret (kubernetes.io/dockerconfigjson) with which the image is pushed.
        ca_config_map: ConfigMap of certificates (``*.crt``) that registries are trusted by.
    """

    buildah_image: str = BUILDAH_IMAGE
    base_images: Mapping[str, str] = {}
    builder_images: Mapping[str, str] = {}
    downloads: str = DOWNLOADS
    nvswitch: bool = True
    tls_verify: bool = True
    push_secret: str = ""
    ca_config_map: str = ""


def check_settings(settings: BuildSettings) -> BuildSettings:
    """The settings as they are, every part being what it should be.

    Raises:
        UnbuildableError: one is not.
    """
    for system in settings.base_images:
        SYSTEM.require(system, "system of a base image")
    for kernel in settings.builder_images:
        KERNEL.require(kernel, "kernel of a builder image")
    for image in (settings.buildah_image, *settings.base_images.values(), *settings.builder_images.values()):
        IMAGE.require(image, "image")
    SECRET.require(settings.push_secret, "push secret")
    CONFIG_MAP.require(settings.ca_config_map, "ConfigMap of certificates")
    URL.require(settings.downloads, "address of downloads")
    return settings
