"""Reads kernels from the index of a Debian archive.

The index is the file ``Packages``, ``Packages.gz`` or ``Packages.xz`` of a suite, component and architecture, such as
``dists/jammy-updates/main/binary-amd64/Packages.xz``. Only the package names in it matter here. This module downloads
nothing: the caller passes the bytes. The unpacked size is limited, since others write the index.
"""

import lzma
import re
import zlib
from collections.abc import Iterator

from tessera.limits.drivers import APT_INDEX

_PIECE = 1 << 20

_IMAGE = re.compile(r"linux-image-(?:unsigned-)?(\d+\.\d+\.\d+-\d+-[a-z0-9-]+)")


def apt_kernels(data: bytes, flavour: str = "generic") -> tuple[str, ...]:
    """The kernels of one flavour (``generic``, ``aws``, ``nvidia-64k``) in an index.

    Raises:
        ValueError: the data is not an index, is damaged, or unpacks to more than :data:`APT_INDEX`.
    """
    images: set[str] = set()
    packages = 0
    for name in _packages(data):
        packages += 1
        if (found := _IMAGE.fullmatch(name)) and _is_of(found[1], flavour):
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
