"""Reads kernels that nodes will boot next, from the index of a Debian archive or from a release of OpenShift.

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
from collections.abc import Iterator
from typing import Any

import msgspec

from tessera.driver.coverage.kernels import ARCHITECTURES, OSTREE, NextKernel
from tessera.driver.image_tags import openshift_release
from tessera.driver.limits import APT_INDEX, RELEASE_DOCUMENT
from tessera.limits.messages import ECHOED
from tessera.nesting import decode_json

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


_KERNEL = re.compile(r"\d+\.\d+\.[A-Za-z0-9._+~-]{1,110}\.(x86_64|aarch64)")


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
    found = _KERNEL.fullmatch(kernel)
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
