"""Kernels that nodes will run next, and the plain list of them that an administrator or a pipeline keeps.

The ConfigMap ``driver-next-kernels`` in Tessera's namespace has a key for each operating system, as image tags name
it, and a kernel a line; behind it may stand the architecture and the version of RHCOS, in any order. ``#`` begins a
remark::

    ubuntu22.04: |
      5.15.0-119-generic
      6.8.0-1015-nvidia-64k arm64
    rhcos4.15: |
      5.14.0-284.55.1.el9_2.x86_64 415.92.202403191241-0

What is written there is untrusted and bounded: a line that is none is reported and the others count.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.driver.nodes.node_facts import page_kib
from tessera.driver.pool import PoolKey
from tessera.limits import ECHOED, KERNEL_LIST, NEXT_KERNELS

#: The ConfigMap that the controller follows.
CONFIG_MAP = "driver-next-kernels"

_SYSTEM = re.compile(r"(?P<id>[a-z][a-z_-]*?)(?P<version>\d[0-9a-z.]{0,15})")
_KERNEL = re.compile(r"\d+\.\d+[A-Za-z0-9._+~-]{0,120}")
_ARCHITECTURE = {"amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64"}
_OSTREE = re.compile(r"\d+\.\d+\.[0-9A-Za-z.-]{1,60}")


class NextKernel(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One kernel that is to come.

    Attributes:
        os_id: ``ID`` of os-release.
        os_version: its ``VERSION_ID``.
        kernel: what ``uname -r`` will say.
        architecture: amd64 or arm64; empty for those of the nodes that run this system now.
        ostree: version of RHCOS's image; empty elsewhere.
    """

    os_id: str
    os_version: str
    kernel: str
    architecture: str = ""
    ostree: str = ""

    def pool(self, architecture: str) -> PoolKey:
        """The pool that nodes with it will be of."""
        return PoolKey(
            os_id=self.os_id,
            os_version=self.os_version,
            kernel=self.kernel,
            architecture=self.architecture or architecture,
            page_kib=page_kib(self.kernel),
            ostree=self.ostree,
        )


def parse_system(text: str) -> tuple[str, str]:
    """``ID`` and ``VERSION_ID`` of ``ubuntu22.04``.

    Raises:
        ValueError: it is not of that form.
    """
    found = _SYSTEM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"operating system {text[:ECHOED]!r}: write ID and VERSION_ID of os-release, for example ubuntu22.04"
        )
    return found["id"], found["version"]


def parse_kernel(name: str, line: str) -> NextKernel:
    """The kernel that a line under a system's name means.

    Raises:
        ValueError: the line is none; the text says what to write.
    """
    os_id, version = parse_system(name)
    words = line.split()
    if not words or not _KERNEL.fullmatch(words[0]):
        raise ValueError(
            f"{name}: kernel {line.strip()[:ECHOED]!r}: write what uname -r says, for example 5.15.0-69-generic"
        )
    architecture, ostree = _architecture_in(words[0]), ""
    for word in words[1:]:
        if word in _ARCHITECTURE:
            architecture = _ARCHITECTURE[word]
        elif _OSTREE.fullmatch(word):
            ostree = word
        else:
            raise ValueError(
                f"{name}: {word[:ECHOED]!r} behind kernel {words[0]}: only amd64 or arm64, "
                "and a version of RHCOS may stand there"
            )
    return NextKernel(os_id=os_id, os_version=version, kernel=words[0], architecture=architecture, ostree=ostree)


def parse_kernel_lists(data: Mapping[str, str]) -> tuple[tuple[NextKernel, ...], tuple[str, ...]]:
    """All kernels of a ConfigMap's data, and a sentence for each line that is none."""
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
    """The systems' lists that change when kernels are added to a ConfigMap's data; what stands there stays."""
    changed: dict[str, str] = {}
    for each in kernels:
        name = f"{each.os_id}{each.os_version}"
        before = changed.get(name, data.get(name, ""))
        end = "" if not before or before.endswith("\n") else "\n"
        words = [each.kernel, each.architecture if not _architecture_in(each.kernel) else "", each.ostree]
        changed[name] = f"{before}{end}{' '.join(filter(None, words))}\n"
    return changed


def content_lines(text: str) -> list[str]:
    """The lines that say something."""
    return [line for each in text.splitlines() if (line := each.split("#", 1)[0].strip())]


def newest_kernels(kernels: Iterable[str], count: int = 1) -> list[str]:
    """The newest kernels, newest first, by the numbers in their names."""
    return sorted(set(kernels), key=version_numbers, reverse=True)[:count]


def newer_kernels(kernels: Iterable[str], than: Sequence[str]) -> list[str]:
    """Those that are newer than every one in ``than``, newest first; all if there is none to compare with."""
    floor = max((version_numbers(each) for each in than), default=())
    return [each for each in newest_kernels(kernels, NEXT_KERNELS) if version_numbers(each) > floor]


def version_numbers(name: str) -> tuple[int, ...]:
    """What kernels are ordered by: ``5.15.0-119-generic`` comes after ``5.15.0-69-generic``."""
    return tuple(int(each) for each in re.findall(r"\d{1,18}", name))


def kernel_flavour(name: str) -> str:
    """``generic`` of ``5.15.0-69-generic``; empty for a kernel that is not named like Ubuntu's."""
    found = re.fullmatch(r"\d+\.\d+\.\d+-\d+-([a-z][a-z0-9-]*)", name)
    return found[1] if found else ""


def _architecture_in(name: str) -> str:
    """The architecture that RHEL's kernels name: …el9_2.x86_64, …el9_2.aarch64+64k."""
    found = re.search(r"\.(x86_64|aarch64)([+_-]64k)?$", name)
    return _ARCHITECTURE[found[1]] if found else ""
