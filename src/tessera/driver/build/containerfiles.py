"""The Containerfiles and scripts of a build, and what they are given.

The texts are files beside this module (``files/``). They follow NVIDIA's published procedures (gpu-driver-container,
``ubuntu*/precompiled`` and ``rhel*/precompiled``) and are this project's own writing, with three differences:
everything is installed when the image is built, so that a container only loads; on RHEL the modules are made with the
kernel's own ``make`` and the libraries come from the same ``.run`` file, so that no repository of NVIDIA's has to have
them; and a container that is restarted keeps a driver of its version that is loaded already.

Not run so far: no test of this project has a container engine, a registry of Red Hat's, or Canonical's archive at hand.
The shell scripts are parsed, and the entry point is run by a shell against folders that stand for a machine's. That
the packages fit together, and that the modules load, only a build and a node can show.

What an image made by them does not do: vGPU, GPUDirect Storage, GDRCopy. Of ``auto`` for kernel modules it knows the
branch and not the cards: for cards before Turing ask for ``proprietary`` where the branch is 560 or later.
"""

import shlex
from collections.abc import Mapping
from importlib import resources

from tessera.driver.build.families import Family
from tessera.driver.build.orders import BuildOrder

#: The part of every image that runs on nodes.
ENTRYPOINT = "nvidia-driver.sh"
#: What the Job runs.
SCRIPT = "build.sh"

_PARTS: Mapping[Family, tuple[str, ...]] = {
    Family.UBUNTU: ("install-ubuntu.sh", ENTRYPOINT),
    Family.RHEL: ("build-kmod.sh", "install-rhel.sh", "rhsm.sh", ENTRYPOINT),
}

#: Secrets of a build by their ids in the Containerfile, and the files that hold them.
SECRETS = ("rhsm_org", "rhsm_activationkey", "signing_key", "signing_certificate")


def build_file(name: str) -> str:
    """One of the files beside this module."""
    return resources.files(__package__).joinpath("files", name).read_text(encoding="utf-8")


def containerfile(family: Family) -> str:
    """How images for a family of systems are built."""
    return build_file(f"{family.value}.Containerfile")


def build_context(family: Family) -> dict[str, str]:
    """All files that a build needs in its folder, ``Containerfile`` among them."""
    return {"Containerfile": containerfile(family)} | {name: build_file(name) for name in _PARTS[family]}


def build_args(order: BuildOrder) -> dict[str, str]:
    """The build arguments of an order, in the order of the Containerfile."""
    if order.family is Family.UBUNTU:
        args = {
            "BASE_IMAGE": order.base_image,
            "KERNEL_VERSION": order.pool.kernel,
            "DRIVER_BRANCH": order.branch,
            "DRIVER_VERSION": order.exact,
        }
    else:
        args = {
            "BUILDER_IMAGE": order.builder_image,
            "BASE_IMAGE": order.base_image,
            "KERNEL_VERSION": order.pool.kernel,
            "DRIVER_VERSION": order.exact,
            "DOWNLOADS": order.settings.downloads,
        }
    return args | {
        "MODULES": "open" if order.open_modules else "proprietary",
        "NVSWITCH": "yes" if order.settings.nvswitch else "no",
        "TARGETARCH": order.pool.architecture,
    }


def build_options(order: BuildOrder) -> list[str]:
    """The build arguments as options of ``buildah build`` and ``podman build``."""
    return [part for name, value in build_args(order).items() for part in ("--build-arg", f"{name}={value}")]


def local_commands(order: BuildOrder, *, tool: str = "buildah", folder: str = "driver-build") -> str:
    """What does the same on a machine with buildah or podman, of the order's architecture, as lines of a shell.

    Args:
        order: what to build.
        tool: buildah or podman.
        folder: holds the files of :func:`build_context`.
    """
    secrets = [f"--secret=id={name},src={name}" for name in SECRETS] if order.family is Family.RHEL else []
    build = [tool, "build", "--format=oci", *build_options(order), *secrets, "--tag", order.target, folder]
    lines = [_wrap_command(build), shlex.join([tool, "push", order.target])]
    if secrets:
        lines.insert(0, "# Leave out the --secret options of files that you do not have.")
    if order.shares_tag:
        lines.append(
            "# The tag does not name the architecture: where nodes of both have it, push a manifest list of both."
        )
    return "\n".join(lines)


def _wrap_command(command: list[str]) -> str:
    """One option a line, an option and its value together."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("-") or word == command[-1]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)
