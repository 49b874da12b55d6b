"""What is to be built: one image for one kernel, under the tag that nodes look for.

Pure. Kernel, version and references come from nodes' labels and from objects that others write, and end in shell
scripts and in the API server: what does not look like what it should be is refused here, and only here.

Two ways to build are known. On Ubuntu nothing is compiled: Canonical publishes signed modules for each kernel and
driver branch. On RHEL and its relatives modules are compiled in an image that has the kernel's headers, which OpenShift
calls the Driver Toolkit. Other systems are refused.
"""

import hashlib
import re
from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.api.driver.policy import DriverPolicy
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import ImageKind
from tessera.driver.tags import tags

#: Where NVIDIA publishes the ``.run`` files, ``<url>/<version>/NVIDIA-Linux-<arch>-<version>.run``.
DOWNLOADS = "https://us.download.nvidia.com/tesla"
#: Runs the build. The project's own image of buildah, which has a user ``build`` (1000) for work without root.
BUILDAH_IMAGE = "quay.io/buildah/stable:v1.42.2"
#: OpenShift's own registry has a Driver Toolkit for each version of RHCOS that the cluster's release knows.
TOOLKIT_STREAM = "image-registry.openshift-image-registry.svc:5000/openshift/driver-toolkit"

#: The first branch for which NVIDIA's driver container takes the open modules when nobody says which.
FIRST_OPEN_BRANCH = 560

_VERSION = re.compile(r"\d{3}(\.\d{1,4}){0,2}")
_KERNEL = re.compile(r"[0-9][A-Za-z0-9._+~-]{0,127}")
_OS = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_OS_VERSION = re.compile(r"[0-9][0-9A-Za-z.]{0,15}")
_OSTREE = re.compile(r"[0-9A-Za-z.-]{0,64}")
#: Of a reference: registry and path, and tag or digest. Not the whole grammar, but nothing outside of it.
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,254}(@sha256:[0-9a-f]{64})?")
_IMAGE_RULE = ("image", "write registry/path:tag or registry/path@sha256:…")
_TARGET = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,200}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SECRET = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?")
_URL = re.compile(r"https?://[A-Za-z0-9._:/-]{1,200}")
#: What base images are told apart by, see :func:`_major`.
_SYSTEM = re.compile(r"ubuntu[0-9]{2}\.[0-9]{2}|rhel[0-9]{1,2}")

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


class UnbuildableError(ValueError):
    """Nothing can be built from this; the text says why and what to do."""


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


class BuildOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One image to build. Made by :func:`order`, which checks every part.

    Attributes:
        pool: the nodes that it is for.
        version: the driver's version (``525.125.06``) or branch (``525``), as asked for.
        target: ``repository/image:tag`` that it is pushed to.
        open_modules: NVIDIA's open kernel modules instead of the proprietary ones.
        base_image: what the finished image stands on.
        builder_image: what compiles; empty for Ubuntu.
        buildah_image: what the Job runs.
        downloads: where NVIDIA's ``.run`` files are found.
        nvswitch: fabric manager and what belongs to it are put in.
        tls_verify: the registry's certificate is checked.
        push_secret: see :class:`BuildSettings`.
        ca_config_map: see :class:`BuildSettings`.
    """

    pool: PoolKey
    version: str
    target: str
    open_modules: bool
    base_image: str
    builder_image: str = ""
    buildah_image: str = BUILDAH_IMAGE
    downloads: str = DOWNLOADS
    nvswitch: bool = True
    tls_verify: bool = True
    push_secret: str = ""
    ca_config_map: str = ""

    @property
    def family(self) -> Family:
        """How it is built."""
        return _FAMILIES[self.pool.os_id]

    @property
    def branch(self) -> str:
        """``525`` of ``525.125.06``."""
        return self.version.split(".", 1)[0]

    @property
    def exact(self) -> str:
        """The whole version; empty if a branch was asked for."""
        return self.version if "." in self.version else ""

    @property
    def machine(self) -> str:
        """The architecture as the kernel says it: x86_64 or aarch64."""
        return _ARCHITECTURES[self.pool.architecture]

    @property
    def shares_tag(self) -> bool:
        """Whether an image for the other architecture has the same tag: the kernel does not name its own."""
        return self.machine not in self.pool.kernel

    @property
    def key(self) -> str:
        """Ten hexadecimal digits: the same for whatever ends under the same tag for the same architecture.

        Nothing else is part of it, so that two opinions about how to build never push to one tag at a time.
        """
        return hashlib.sha256(f"{self.target} {self.pool.architecture}".encode()).hexdigest()[:10]

    @property
    def tag_key(self) -> str:
        """Ten hexadecimal digits of the target alone, under which builds for two architectures take turns."""
        return hashlib.sha256(self.target.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        """The name of its Jobs, without the number of the attempt."""
        return f"tessera-build-{self.key}"


def order(
    pool: PoolKey,
    *,
    version: str,
    target: str,
    module_type: str = "auto",
    settings: BuildSettings | None = None,
    base_image: str = "",
    builder_image: str = "",
) -> BuildOrder:
    """An order that can be carried out.

    Args:
        pool: the nodes that it is for.
        version: the driver's version or branch.
        target: ``repository/image:tag``, the tag being one that those nodes look for.
        module_type: auto, open or proprietary. ``auto`` is decided by the branch, as nothing is known of the cards.
        settings: what an administrator says about building; the defaults if left out.
        base_image: what the finished image stands on, whatever the settings say.
        builder_image: what compiles, whatever the settings say.

    Raises:
        UnbuildableError: a part is not what it should be, or nothing can be built for this system.
    """
    family = _FAMILIES.get(pool.os_id)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnbuildableError(f"{pool.text}: no way to build for {pool.os_id!r} is known; known are {known}")
    settings = settings or BuildSettings()
    _check(pool, version, target, settings)
    made = BuildOrder(
        pool=pool,
        version=version,
        target=target,
        open_modules=_open(module_type, version),
        base_image=base_image or settings.base_images.get(_major(pool)) or _base_image(pool, family),
        builder_image=(builder_image or _builder_image(pool, settings)) if family is Family.RHEL else "",
        buildah_image=settings.buildah_image,
        downloads=settings.downloads,
        nvswitch=settings.nvswitch,
        tls_verify=settings.tls_verify,
        push_secret=settings.push_secret,
        ca_config_map=settings.ca_config_map,
    )
    if family is Family.RHEL and not made.exact:
        raise UnbuildableError(
            f"driver version {version!r} for {pool.text}: a branch does not name NVIDIA's .run file; "
            "give the whole version, for example 580.65.06"
        )
    for image in filter(None, (made.base_image, made.builder_image)):
        _fits(_IMAGE, image, *_IMAGE_RULE)
    return made


def order_for(
    policy: DriverPolicy, pool: PoolKey, *, toolkit: str = "", settings: BuildSettings | None = None
) -> BuildOrder:
    """The order that a policy with a build repository means for a pool.

    Args:
        policy: says where to, which version and which kernel modules.
        pool: the nodes that it is for.
        toolkit: the Driver Toolkit's image for the pool, where it is known.
        settings: what an administrator says about building; the defaults if left out.

    Raises:
        UnbuildableError: the policy does not say enough, or :func:`order` refuses.
    """
    source = policy.source
    if not policy.build_repository or not source.image or not source.version:
        raise UnbuildableError(
            f"{policy.kind} {policy.name!r}: a build needs a repository to push to, the driver's image and its version"
        )
    settings = settings or BuildSettings()
    if toolkit:
        settings = msgspec.structs.replace(settings, builder_images={**settings.builder_images, pool.kernel: toolkit})
    if policy.build_secret:
        settings = msgspec.structs.replace(settings, push_secret=policy.build_secret)
    return order(
        pool,
        version=source.version,
        target=target(f"{policy.build_repository.rstrip('/')}/{source.image}", source.version, pool),
        module_type=policy.kernel_module_type,
        settings=settings,
    )


def checked(settings: BuildSettings) -> BuildSettings:
    """The settings as they are, every part being what it should be.

    Raises:
        UnbuildableError: one is not.
    """
    for system in settings.base_images:
        _fits(_SYSTEM, system, "system of a base image", "write ubuntu22.04 or rhel9, which RHCOS 4.15 is, too")
    for kernel in settings.builder_images:
        _fits(_KERNEL, kernel, "kernel of a builder image", "write what uname -r says")
    for image in (settings.buildah_image, *settings.base_images.values(), *settings.builder_images.values()):
        _fits(_IMAGE, image, *_IMAGE_RULE)
    _fits(_SECRET, settings.push_secret, "push secret", "write the name of a Secret")
    _fits(_SECRET, settings.ca_config_map, "ConfigMap of certificates", "write its name")
    _fits(_URL, settings.downloads, "address of downloads", "write http(s)://host/path")
    return settings


def target(repository: str, version: str, pool: PoolKey) -> str:
    """``repository:tag`` with the tag that is looked for first."""
    return f"{repository}:{tags(version, pool, ImageKind.PRECOMPILED)[0]}"


def _check(pool: PoolKey, version: str, target: str, settings: BuildSettings) -> None:
    _fits(_OS, pool.os_id, "operating system", "write the ID of os-release")
    _fits(_OS_VERSION, pool.os_version, "version of the operating system", "write the VERSION_ID of os-release")
    _fits(_KERNEL, pool.kernel, "kernel", "write what uname -r says")
    _fits(_OSTREE, pool.ostree, "version of RHCOS", "write the OSTREE_VERSION of os-release")
    _fits(_VERSION, version, "driver version", "write a version like 525.125.06 or a branch like 525")
    _fits(_TARGET, target, "target", "write registry/path/image:tag")
    checked(settings)
    if pool.architecture not in _ARCHITECTURES:
        raise UnbuildableError(f"architecture {pool.architecture!r} of {pool.text}: only amd64 and arm64 are known")


def _fits(form: re.Pattern[str], value: str, what: str, how: str) -> None:
    if not form.fullmatch(value):
        raise UnbuildableError(f"{what} {value[:200]!r} is not of the form that it must have; {how}")


def _open(module_type: str, version: str) -> bool:
    match module_type:
        case "open":
            return True
        case "proprietary":
            return False
        case "auto" | "":
            return int(version[:3]) >= FIRST_OPEN_BRANCH
    raise UnbuildableError(f"kernel module type {module_type[:50]!r}: write auto, open or proprietary")


def _major(pool: PoolKey) -> str:
    """``ubuntu22.04``, ``rhel9``: what base images are told apart by."""
    if _FAMILIES[pool.os_id] is Family.UBUNTU:
        return f"ubuntu{pool.os_version}"
    return f"rhel{rhel_major(pool)}"


def rhel_major(pool: PoolKey) -> str:
    """``9`` of RHEL 9.4 and of RHCOS 4.15: the kernel names it (``.el9_2``), a version of OpenShift does not.

    Raises:
        UnbuildableError: neither kernel nor version names it.
    """
    found = re.search(r"\.el(\d+)", pool.kernel)
    if found:
        return found[1]
    if pool.os_id == "rhcos":
        raise UnbuildableError(
            f"kernel {pool.kernel!r} does not name the RHEL that it is of (.el9); nothing can be built"
        )
    return pool.os_version.split(".", 1)[0]


def _base_image(pool: PoolKey, family: Family) -> str:
    if family is Family.UBUNTU:
        return f"docker.io/library/ubuntu:{pool.os_version}"
    major = rhel_major(pool)
    return f"registry.access.redhat.com/ubi{major}/ubi:latest"


def _builder_image(pool: PoolKey, settings: BuildSettings) -> str:
    """What has the kernel's headers; without a Driver Toolkit a base image that can install them (build-kmod.sh)."""
    given = settings.builder_images.get(pool.kernel)
    if given:
        return given
    if pool.ostree:
        return f"{TOOLKIT_STREAM}:{pool.ostree}"
    if pool.os_id == "rhcos":
        raise UnbuildableError(
            f"{pool.text}: which Driver Toolkit fits is not known; name its image, or the RHCOS version"
        )
    return settings.base_images.get(_major(pool)) or _base_image(pool, Family.RHEL)
