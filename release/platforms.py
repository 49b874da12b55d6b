"""Platforms of the image and of the plugin: one name for users, and the names that Debian, wheels and krew use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """A system and an architecture.

    Attributes:
        os: ``linux`` or ``darwin``, as krew and OCI images name it.
        architecture: ``amd64`` or ``arm64``, as OCI images, krew and Debian name it.
        wheel_tags: platform tags of the wheels that run there (PEP 600 and PEP 425), the newest first.
        library_folder: Debian's folder of libraries below ``/usr/lib``; empty if there is no image for the platform.
        elf_machine: pyelftools' name of the machine in each binary; empty if the platform has no ELF files.
    """

    os: str
    architecture: str
    wheel_tags: tuple[str, ...]
    library_folder: str = ""
    elf_machine: str = ""

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


def _linux(architecture: str, machine: str, elf_machine: str) -> Platform:
    # glibc 2.28 (RHEL 8) to 2.17: the plugin runs on old machines too; no pinned wheel needs a newer one.
    manylinux = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)]
    tags = (*manylinux, f"manylinux2014_{machine}")
    return Platform("linux", architecture, tags, f"{machine}-linux-gnu", elf_machine)


#: macOS 11 is the oldest that the pinned wheels of Apple's own processors support; 10.15 that of Intel's.
_DARWIN = (
    Platform(
        "darwin",
        "amd64",
        tuple(
            f"macosx_{each}_{kind}" for each in ("11_0", "10_15", "10_13", "10_9") for kind in ("x86_64", "universal2")
        ),
    ),
    Platform(
        "darwin",
        "arm64",
        tuple(
            f"macosx_{each}_{kind}" for each in ("11_0", "10_15", "10_13", "10_9") for kind in ("arm64", "universal2")
        ),
    ),
)
IMAGES = (_linux("amd64", "x86_64", "EM_X86_64"), _linux("arm64", "aarch64", "EM_AARCH64"))
PLUGINS = (*IMAGES, *_DARWIN)


def platform(name: str) -> Platform:
    """The platform of a name such as ``linux/arm64``.

    Raises:
        SystemExit: there is no such platform.
    """
    for each in PLUGINS:
        if str(each) == name:
            return each
    raise SystemExit(f"error: platform {name!r} is unknown; the platforms are {', '.join(map(str, PLUGINS))}")
