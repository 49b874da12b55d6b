"""Settings of driver image builds, and the checks of every value that goes into a build order.

Kernel, version and image references go into shell scripts and to the API server. They come from node labels and from
objects that others write. So this module, and only this one, refuses values of the wrong form. A correct form proves
that a value is harmless, not that such an image exists.
"""

import re
from collections.abc import Mapping

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.limits.messages import ECHOED


class UnbuildableError(ValueError):
    """These values cannot be built; the text says why and what to do."""


class Form(msgspec.Struct, frozen=True):
    """The required form of a value, and a hint for correcting one that does not have it."""

    pattern: re.Pattern[str]
    advice: str

    def require(self, value: str, field: str) -> None:
        """Refuses a value that does not have this form.

        Args:
            value: the text to check.
            field: the name of the value, for the message.

        Raises:
            UnbuildableError: the value does not have this form.
        """
        if not self.pattern.fullmatch(value):
            raise UnbuildableError(f"{field} {value[:ECHOED]!r} is not of the form that it must have; {self.advice}")


_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?")

VERSION = Form(re.compile(r"\d{3}(\.\d{1,4}){0,2}"), "write a version like 525.125.06 or a branch like 525")
KERNEL = Form(re.compile(r"[0-9][A-Za-z0-9._+~-]{0,127}"), "write what uname -r says")
_OS = Form(re.compile(r"[a-z][a-z0-9_-]{0,31}"), "write the ID of os-release")
_OS_VERSION = Form(re.compile(r"[0-9][0-9A-Za-z.]{0,15}"), "write the VERSION_ID of os-release")
_OSTREE = Form(re.compile(r"[0-9A-Za-z.-]{0,64}"), "write the OSTREE_VERSION of os-release")
#: Form of a reference: registry and path, and tag or digest. It accepts a subset of the whole grammar.
IMAGE = Form(
    re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,254}(@sha256:[0-9a-f]{64})?"),
    "write registry/path:tag or registry/path@sha256:…",
)
TARGET = Form(
    re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,200}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"), "write registry/path/image:tag"
)
#: The keys of base images: a system and its version, for RHEL and its relatives the major version.
SYSTEM = Form(
    re.compile(r"ubuntu[0-9]{2}\.[0-9]{2}|rhel[0-9]{1,2}"), "write ubuntu22.04 or rhel9, which RHCOS 4.15 is, too"
)
SECRET = Form(_NAME, "write the name of a Secret")
CONFIG_MAP = Form(_NAME, "write its name")
URL = Form(re.compile(r"https?://[A-Za-z0-9._:/-]{1,200}"), "write http(s)://host/path")

#: Architectures in the registries' spelling, and in the kernel's.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def require_pool(pool: PoolKey) -> None:
    """Refuses a pool with parts of the wrong form; node labels may contain any text.

    Raises:
        UnbuildableError: a part has the wrong form.
    """
    _OS.require(pool.os_id, "operating system")
    _OS_VERSION.require(pool.os_version, "version of the operating system")
    KERNEL.require(pool.kernel, "kernel")
    _OSTREE.require(pool.ostree, "version of RHCOS")
    if pool.architecture not in ARCHITECTURES:
        raise UnbuildableError(f"architecture {pool.architecture!r} of {pool.text}: only amd64 and arm64 are known")


#: NVIDIA's download address of ``.run`` files, ``<url>/<version>/NVIDIA-Linux-<arch>-<version>.run``.
DOWNLOADS = "https://us.download.nvidia.com/tesla"
#: The image that runs the build: the buildah project's own, which has a user ``build`` (1000) for work without root.
BUILDAH_IMAGE = "quay.io/buildah/stable:v1.42.2"


class BuildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The administrator's settings for builds; each has a default.

    Attributes:
        buildah_image: image that the Job runs.
        base_images: base images of finished images, by ``ubuntu22.04`` or ``rhel9``.
        builder_images: images that compile, by the whole kernel release; only for RHEL and its relatives.
        downloads: download address of NVIDIA's ``.run`` files.
        nvswitch: install fabric manager and its companions.
        tls_verify: check the registry's certificate.
        push_secret: Secret (kubernetes.io/dockerconfigjson) for pushing the image.
        ca_config_map: ConfigMap with certificates (``*.crt``) by which registries are trusted.
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
    """Returns the settings unchanged if every part is valid.

    Raises:
        UnbuildableError: a part is not valid.
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
