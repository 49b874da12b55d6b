"""Orders to build one image for one kernel, under the tag that nodes look for. Pure.

There are two ways to build. On Ubuntu nothing is compiled: Canonical publishes signed modules for each kernel and
driver branch. On RHEL and its relatives an image with the kernel's headers compiles the modules; OpenShift calls this
image the Driver Toolkit. Other systems are refused.

Every value that goes into an order is checked. Kernel, version and image references go into shell scripts and to the
API server. They come from node labels and from objects that others write. So this module, and only this one, refuses
values of the wrong form. A correct form proves that a value is harmless, not that such an image exists.
"""

import hashlib
import re
from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, tags
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.limits import ECHOED


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


#: The first branch for which NVIDIA's driver container uses the open modules if the type is not set.
FIRST_OPEN_BRANCH = 560


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


def _base_image(pool: PoolKey, settings: BuildSettings) -> str:
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


def _builder_image(pool: PoolKey, settings: BuildSettings) -> str:
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
    return given or _base_image(pool, settings)


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


class BuildOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One image to build. Made by :func:`make_order`, which checks every part.

    Attributes:
        pool: the nodes that need the image.
        version: the requested driver version (``525.125.06``) or branch (``525``).
        target: ``repository/image:tag`` to push to.
        open_modules: use NVIDIA's open kernel modules instead of the proprietary ones.
        base_image: base image of the finished image.
        builder_image: image that compiles; empty for Ubuntu.
        settings: the administrator's other build settings.
    """

    pool: PoolKey
    version: str
    target: str
    open_modules: bool
    base_image: str
    builder_image: str = ""
    settings: BuildSettings = BuildSettings()

    @property
    def family(self) -> BuildFamily:
        """The way to build it."""
        return family_of(self.pool)

    @property
    def branch(self) -> str:
        """``525`` of ``525.125.06``."""
        return self.version.split(".", 1)[0]

    @property
    def exact(self) -> str:
        """The whole version; empty if the order names a branch."""
        return self.version if "." in self.version else ""

    @property
    def machine(self) -> str:
        """The architecture in the kernel's spelling: x86_64 or aarch64."""
        return ARCHITECTURES[self.pool.architecture]

    @property
    def shares_tag(self) -> bool:
        """True if images for both architectures have the same tag, since the kernel does not name its architecture."""
        return self.machine not in self.pool.kernel

    @property
    def key(self) -> str:
        """Ten hexadecimal digits, the same for all orders with the same tag and architecture.

        Nothing else is part of it, so two orders that differ in how to build never push to one tag at the same time.
        """
        return hashlib.sha256(f"{self.target} {self.pool.architecture}".encode()).hexdigest()[:10]

    @property
    def tag_key(self) -> str:
        """Ten hexadecimal digits of the target alone; builds with this value for two architectures take turns."""
        return hashlib.sha256(self.target.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        """The name of its Jobs, without the attempt's number."""
        return f"tessera-build-{self.key}"


def make_order(
    pool: PoolKey,
    *,
    version: str,
    target: str,
    module_type: str = "auto",
    settings: BuildSettings | None = None,
    base_image: str = "",
    builder_image: str = "",
) -> BuildOrder:
    """Makes an order and checks every part.

    Args:
        pool: the nodes that need the image.
        version: the driver's version or branch.
        target: ``repository/image:tag``; the tag must be one that those nodes look for.
        module_type: auto, open or proprietary. The branch decides ``auto``, since the GPUs are not known.
        settings: the administrator's build settings; the defaults if left out.
        base_image: base image of the finished image; overrides the settings.
        builder_image: image that compiles; overrides the settings.

    Raises:
        UnbuildableError: a part is invalid, or nothing can be built for this system.
    """
    family = family_of(pool)
    require_pool(pool)
    VERSION.require(version, "driver version")
    TARGET.require(target, "target")
    settings = check_settings(settings or BuildSettings())
    made = BuildOrder(
        pool=pool,
        version=version,
        target=target,
        open_modules=_needs_open_module(module_type, version),
        base_image=base_image or _base_image(pool, settings),
        builder_image=(builder_image or _builder_image(pool, settings)) if family is BuildFamily.RHEL else "",
        settings=settings,
    )
    if family is BuildFamily.RHEL and not made.exact:
        raise UnbuildableError(
            f"driver version {version!r} for {pool.text}: a branch does not name NVIDIA's .run file; "
            "give the whole version, for example 580.65.06"
        )
    for image in filter(None, (made.base_image, made.builder_image)):
        IMAGE.require(image, "image")
    return made


def order_for(policy: DriverPolicy, pool: PoolKey, *, settings: BuildSettings | None = None) -> BuildOrder:
    """The order for a pool under a policy with a build repository.

    Args:
        policy: names the repository, the version and the kernel modules.
        pool: the nodes that need the image.
        settings: the administrator's build settings; the defaults if left out.

    Raises:
        UnbuildableError: the policy lacks a value, or :func:`make_order` refuses the order.
    """
    source = policy.source
    if not policy.build_repository or not source.image or not source.version:
        raise UnbuildableError(
            f"{policy.kind} {policy.name!r}: a build needs a repository to push to, the driver's image and its version"
        )
    settings = settings or BuildSettings()
    if policy.build_secret:
        settings = msgspec.structs.replace(settings, push_secret=policy.build_secret)
    return make_order(
        pool,
        version=source.version,
        target=target_reference(f"{policy.build_repository.rstrip('/')}/{source.image}", source.version, pool),
        module_type=policy.kernel_module_type,
        settings=settings,
    )


def target_reference(repository: str, version: str, pool: PoolKey) -> str:
    """``repository:tag`` with the tag that nodes look for first."""
    return f"{repository}:{tags(version, pool, ImageKind.PRECOMPILED)[0]}"


def _needs_open_module(module_type: str, version: str) -> bool:
    match module_type:
        case "open":
            return True
        case "proprietary":
            return False
        case "auto" | "":
            return int(version[:3]) >= FIRST_OPEN_BRANCH
    raise UnbuildableError(f"kernel module type {module_type[:ECHOED]!r}: write auto, open or proprietary")
