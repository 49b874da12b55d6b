"""What an administrator may say about builds of driver images; every part has a default, and is checked before use."""

from collections.abc import Mapping

import msgspec

from tessera.driver.build.forms import CONFIG_MAP, IMAGE, KERNEL, SECRET, SYSTEM, URL

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


def checked(settings: BuildSettings) -> BuildSettings:
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
