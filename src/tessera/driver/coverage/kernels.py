"""Kernels that nodes will run next, and the text list of them that an administrator or a pipeline writes.

The ConfigMap ``driver-next-kernels`` in Tessera's namespace has a key for each operating system, in the spelling of
image tags, and one kernel on each line. The architecture and the RHCOS version may follow the kernel, in any order.
``#`` begins a comment::

    ubuntu22.04: |
      5.15.0-119-generic
      6.8.0-1015-nvidia-64k arm64
    rhcos4.15: |
      5.14.0-284.55.1.el9_2.x86_64 415.92.202403191241-0

The text is untrusted and limited in size: an invalid line is reported, and the others are used.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.driver.limits import KERNEL_LIST, NEXT_KERNELS
from tessera.driver.nodes.node_facts import page_kib
from tessera.limits.messages import ECHOED

#: The ConfigMap that the controller watches.
CONFIG_MAP = "driver-next-kernels"

_SYSTEM = re.compile(r"(?P<id>[a-z][a-z_-]*?)(?P<version>\d[0-9a-z.]{0,15})")
_KERNEL = re.compile(r"\d+\.\d+[A-Za-z0-9._+~-]{0,120}")
#: Architectures in the registries' spelling, by that and by the kernel's.
ARCHITECTURES = {"amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64"}
OSTREE = re.compile(r"[0-9]+\.[0-9]+\.[0-9A-Za-z.-]{1,60}")


class NextKernel(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One kernel that nodes will run next.

    Attributes:
        os_id: ``ID`` of os-release.
        os_version: its ``VERSION_ID``.
        kernel: the output of ``uname -r``.
        architecture: amd64 or arm64; empty for the architectures of the nodes that run this system now.
        ostree: version of RHCOS's image; empty on other systems.
    """

    os_id: str
    os_version: str
    kernel: str
    architecture: str = ""
    ostree: str = ""

    def pool(self, architecture: str) -> PoolKey:
        """The pool of nodes with this kernel."""
        return PoolKey(
            os_id=self.os_id,
            os_version=self.os_version,
            kernel=self.kernel,
            architecture=self.architecture or architecture,
            page_kib=page_kib(self.kernel),
            ostree=self.ostree,
        )


def parse_system(text: str) -> tuple[str, str]:
    """Splits ``ubuntu22.04`` into ``ID`` and ``VERSION_ID``.

    Raises:
        ValueError: the text does not have that form.
    """
    found = _SYSTEM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"operating system {text[:ECHOED]!r}: write ID and VERSION_ID of os-release, for example ubuntu22.04"
        )
    return found["id"], found["version"]


def parse_kernel(name: str, line: str) -> NextKernel:
    """Reads the kernel from a line under a system's name.

    Raises:
        ValueError: the line is invalid; the text says what to write.
    """
    os_id, version = parse_system(name)
    words = line.split()
    if not words or not _KERNEL.fullmatch(words[0]):
        raise ValueError(
            f"{name}: kernel {line.strip()[:ECHOED]!r}: write what uname -r says, for example 5.15.0-69-generic"
        )
    architecture, ostree = _architecture_in(words[0]), ""
    for word in words[1:]:
        if word in ARCHITECTURES:
            architecture = ARCHITECTURES[word]
        elif OSTREE.fullmatch(word):
            ostree = word
        else:
            raise ValueError(
                f"{name}: {word[:ECHOED]!r} behind kernel {words[0]}: only amd64 or arm64, "
                "and a version of RHCOS may stand there"
            )
    return NextKernel(os_id=os_id, os_version=version, kernel=words[0], architecture=architecture, ostree=ostree)


def parse_kernel_lists(data: Mapping[str, str]) -> tuple[tuple[NextKernel, ...], tuple[str, ...]]:
    """All kernels in a ConfigMap's data, and a sentence for each invalid line."""
    kernels: dict[NextKernel, None] = {}
    problems: list[str] = []
    for name in sorted(data):
        text = data[name]
        if len(text) > KERNEL_LIST:
            problems.append(f"{name[:ECHOED]}: has {len(text):,} characters; {KERNEL_LIST} are read, remove lines")
        for line in content_lines(text[:KERNEL_LIST]):
            try:
                kernels[parse_kernel(name, line)] = None
            except ValueError as error:
                problems.append(str(error))
    if len(kernels) > NEXT_KERNELS:
        problems.append(f"{len(kernels):,} kernels are listed; {NEXT_KERNELS} count, those that are listed first")
    return tuple(kernels)[:NEXT_KERNELS], tuple(problems[:NEXT_KERNELS])


def add_kernels(data: Mapping[str, str], kernels: Iterable[NextKernel]) -> dict[str, str]:
    """The systems' lists that change when kernels are added to a ConfigMap's data; existing lines stay."""
    changed: dict[str, str] = {}
    for each in kernels:
        name = f"{each.os_id}{each.os_version}"
        before = changed.get(name, data.get(name, ""))
        end = "" if not before or before.endswith("\n") else "\n"
        words = [each.kernel, each.architecture if not _architecture_in(each.kernel) else "", each.ostree]
        changed[name] = f"{before}{end}{' '.join(filter(None, words))}\n"
    return changed


def content_lines(text: str) -> list[str]:
    """The lines that are neither empty nor a comment."""
    return [line for each in text.splitlines() if (line := each.split("#", 1)[0].strip())]


def newest_kernels(kernels: Iterable[str], count: int = 1) -> list[str]:
    """The newest kernels, newest first, by the numbers in their names."""
    return sorted(set(kernels), key=version_numbers, reverse=True)[:count]


def newer_kernels(kernels: Iterable[str], than: Sequence[str]) -> list[str]:
    """The kernels newer than every one in ``than``, newest first; all kernels if ``than`` is empty."""
    floor = max((version_numbers(each) for each in than), default=())
    return [each for each in newest_kernels(kernels, NEXT_KERNELS) if version_numbers(each) > floor]


def version_numbers(name: str) -> tuple[int, ...]:
    """The sort key of kernels: ``5.15.0-119-generic`` comes after ``5.15.0-69-generic``."""
    return tuple(int(each) for each in re.findall(r"\d{1,18}", name))


def _architecture_in(name: str) -> str:
    """The architecture in the names of RHEL's kernels: …el9_2.x86_64, …el9_2.aarch64+64k."""
    found = re.search(r"\.(x86_64|aarch64)([+_-]64k)?$", name)
    return ARCHITECTURES[found[1]] if found else ""
