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

Such kernels are also read from the index of a Debian archive, or from a release of OpenShift.

The index is the file ``Packages``, ``Packages.gz`` or ``Packages.xz`` of a suite, component and architecture, such as
``dists/jammy-updates/main/binary-amd64/Packages.xz``. Only the package names in it matter here. The unpacked size is
limited, since others write the index.

A release of OpenShift names its RHCOS version (``oc adm release info RELEASE -o json``). Only its Driver Toolkit names
the kernel, in its file ``/etc/driver-toolkit-release.json``.

This module downloads nothing: the caller passes the content.
"""

import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import openshift_release
from tessera.driver.limits import APT_INDEX, KERNEL_LIST, NEXT_KERNELS, RELEASE_DOCUMENT
from tessera.driver.node_facts import page_kib
from tessera.limits import ECHOED
from tessera.nesting import decode_json

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


_PIECE = 1 << 20

_PACKAGE = re.compile(r"linux-image-(?:unsigned-)?(\d+\.\d+\.\d+-\d+-[a-z0-9-]+)")


def apt_kernels(data: bytes, flavour: str = "generic") -> tuple[str, ...]:
    """The kernels of one flavour (``generic``, ``aws``, ``nvidia-64k``) in an index.

    Raises:
        ValueError: the data is not an index, is damaged, or unpacks to more than :data:`APT_INDEX`.
    """
    images: set[str] = set()
    packages = 0
    for name in _packages(data):
        packages += 1
        if (found := _PACKAGE.fullmatch(name)) and _is_of(found[1], flavour):
            images.add(found[1])
    if not packages:
        raise ValueError("apt index: no line 'Package: …' in it; give the file Packages, Packages.gz or Packages.xz")
    return tuple(sorted(images))


def _is_of(kernel: str, flavour: str) -> bool:
    """True if a kernel has this flavour; ``5.15.0-69-generic-64k`` has neither ``generic`` nor ``64k``."""
    return re.sub(r"^\d+\.\d+\.\d+-\d+-", "", kernel) == flavour


def _packages(data: bytes) -> Iterator[str]:
    rest = b""
    for piece in _unpack(data):
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > _PIECE:
            raise ValueError("apt index: a line of more than a megabyte; this is no index of packages")
        yield from _package_names(whole)
    yield from _package_names([rest])


def _package_names(lines: list[bytes]) -> Iterator[str]:
    for line in lines:
        if line.startswith(b"Package: "):
            yield line[9:].decode("ascii", "replace").strip()


def _unpack(data: bytes) -> Iterator[bytes]:
    pieces = _pieces(data)
    total = 0
    while True:
        try:
            piece = next(pieces, None)
        except (zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"apt index: damaged: {error}") from error
        if piece is None:
            return
        total += len(piece)
        if total > APT_INDEX:
            raise ValueError(f"apt index: unpacks to too much: {APT_INDEX} are allowed; this is no index of packages")
        yield piece


def _pieces(data: bytes) -> Iterator[bytes]:
    if data.startswith(b"\x1f\x8b"):
        yield from _gzip(data)
    elif data.startswith(b"\xfd7zXZ\x00"):
        yield from _xz(data)
    else:
        yield data


def _gzip(data: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    while True:
        piece = unpacker.decompress(data, _PIECE)
        data = unpacker.unconsumed_tail
        if piece:
            yield piece
        if unpacker.eof:
            return
        if not piece and not data:
            raise ValueError("apt index: ends in the middle")


def _xz(data: bytes) -> Iterator[bytes]:
    unpacker = lzma.LZMADecompressor()
    while not unpacker.eof:
        piece = unpacker.decompress(data, _PIECE)
        data = b""
        if piece:
            yield piece
        elif unpacker.needs_input:
            raise ValueError("apt index: ends in the middle")


_FULL_KERNEL = re.compile(r"\d+\.\d+\.[A-Za-z0-9._+~-]{1,110}\.(x86_64|aarch64)")


def rhcos_version(data: bytes) -> str:
    """The RHCOS version in the output of ``oc adm release info -o json``; its nodes name it as ``OSTREE_VERSION``.

    Raises:
        ValueError: the data is not such output, or names no RHCOS version.
    """
    found = _text(_part(_document(data, "release"), "displayVersions", "machine-os"), "Version")
    if not OSTREE.fullmatch(found):
        raise ValueError(
            "release: no displayVersions.machine-os in it; give what 'oc adm release info RELEASE -o json' prints"
        )
    return found


def toolkit_kernel(data: bytes, machine_os: str = "") -> NextKernel:
    """The kernel that ``/etc/driver-toolkit-release.json`` of a Driver Toolkit names.

    Args:
        data: the file.
        machine_os: the RHCOS version of the toolkit, if it is known.

    Raises:
        ValueError: the file names no kernel.
    """
    document = _document(data, "driver-toolkit-release.json")
    kernel, rhel = _text(document, "KERNEL_VERSION"), _text(document, "RHEL_VERSION")
    found = _FULL_KERNEL.fullmatch(kernel)
    if found is None:
        raise ValueError(f"driver-toolkit-release.json: KERNEL_VERSION {kernel[:ECHOED]!r} is no kernel of RHEL")
    os_id, os_version = _system(machine_os, rhel)
    return NextKernel(
        os_id=os_id,
        os_version=os_version,
        kernel=kernel,
        architecture=ARCHITECTURES[found[1]],
        ostree=machine_os,
    )


def with_large_pages(kernel: NextKernel) -> NextKernel:
    """The same kernel with 64 KiB pages; a toolkit for arm64 can build for it too.

    Raises:
        ValueError: the kernel is not for arm64.
    """
    if kernel.architecture != "arm64":
        raise ValueError(f"kernel {kernel.kernel}: only arm64 has pages of 64 KiB")
    return msgspec.structs.replace(kernel, kernel=f"{kernel.kernel.removesuffix('+64k')}+64k")


def _system(machine_os: str, rhel: str) -> tuple[str, str]:
    """``ID`` and ``VERSION_ID`` of nodes: rhcos and OpenShift's version up to 4.18, rhel and RHEL's version since."""
    release = openshift_release(machine_os)
    if release:
        return "rhcos", release
    if machine_os and not rhel:
        rhel = ".".join(machine_os.split(".")[:2])
    if not re.fullmatch(r"\d+(\.\d+)?", rhel):
        raise ValueError(f"driver-toolkit-release.json: RHEL_VERSION {rhel[:ECHOED]!r} is no version of RHEL")
    return "rhel", rhel


def _document(data: bytes, source: str) -> dict[str, Any]:
    if len(data) > RELEASE_DOCUMENT:
        raise ValueError(f"{source}: has {len(data):,} bytes; {RELEASE_DOCUMENT} are allowed")
    try:
        found: dict[str, Any] = decode_json(data, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: no JSON object: {error}") from error
    return found


def _part(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: object, name: str) -> str:
    found = _part(value, name)
    return found if isinstance(found, str) else ""
