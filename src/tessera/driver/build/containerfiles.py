"""The Containerfiles and scripts of a build, and their arguments.

The texts are files beside this module (``files/``). They follow NVIDIA's published procedures (gpu-driver-container,
``ubuntu*/precompiled`` and ``rhel*/precompiled``) but are written by this project, with three differences:

1. Everything is installed when the image is built, so a container only loads modules.
2. On RHEL the kernel's own ``make`` builds the modules, and the libraries come from the same ``.run`` file. So no
   repository of NVIDIA's has to carry them.
3. A restarted container keeps a loaded driver if it has the container's version.

Not run so far: the tests of this project have no container engine, no registry of Red Hat's and no archive of
Canonical's. The tests parse the shell scripts, and a shell runs the entry point against folders that imitate a machine.
Only a build and a node can show that the packages fit together and that the modules load.

Images made by these files do not support vGPU, GPUDirect Storage or GDRCopy. For module type ``auto`` a build knows the
driver branch but not the GPUs: for GPUs before Turing set ``proprietary`` if the branch is 560 or later.
"""

import shlex
from collections.abc import Mapping
from importlib import resources

from tessera.driver.build.families import BuildFamily
from tessera.driver.build.orders import BuildOrder

#: Files that are part of every image and run on nodes.
ENTRYPOINT = "nvidia-driver.sh"
#: The script that the Job runs.
SCRIPT = "build.sh"

_PARTS: Mapping[BuildFamily, tuple[str, ...]] = {
    BuildFamily.UBUNTU: ("install-ubuntu.sh", ENTRYPOINT),
    BuildFamily.RHEL: ("build-kmod.sh", "install-rhel.sh", "rhsm.sh", ENTRYPOINT),
}

#: Secrets of a build by their ids in the Containerfile, and the files that contain them.
SECRETS = ("rhsm_org", "rhsm_activationkey", "signing_key", "signing_certificate")


def build_file(name: str) -> str:
    """One of the files beside this module."""
    return resources.files(__package__).joinpath("files", name).read_text(encoding="utf-8")


def containerfile(family: BuildFamily) -> str:
    """The Containerfile for a family of systems."""
    return build_file(f"{family.value}.Containerfile")


def build_context(family: BuildFamily) -> dict[str, str]:
    """All files that a build needs in its folder, including ``Containerfile``."""
    return {"Containerfile": containerfile(family)} | {name: build_file(name) for name in _PARTS[family]}


def build_args(order: BuildOrder) -> dict[str, str]:
    """The build arguments of an order, in the sequence of the Containerfile."""
    if order.family is BuildFamily.UBUNTU:
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
    """Shell lines that run the same build with buildah or podman on a machine of the order's architecture.

    Args:
        order: what to build.
        tool: buildah or podman.
        folder: the folder with the files of :func:`build_context`.
    """
    secrets = [f"--secret=id={name},src={name}" for name in SECRETS] if order.family is BuildFamily.RHEL else []
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
    """The command with one option on each line, each option together with its value."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("-") or word == command[-1]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)
