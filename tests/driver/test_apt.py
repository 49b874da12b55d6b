"""Indexes of Debian archives: kernels, and files that are none."""

import contextlib
import gzip
import lzma
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.driver import kernels
from tessera.driver.kernels import apt_kernels

#: Stanzas shortened from dists/jammy-updates; names and form are Canonical's.
INDEX = b"""Package: linux-image-5.15.0-118-generic
Architecture: amd64
Version: 5.15.0-118.128
Filename: pool/main/l/linux-signed/linux-image-5.15.0-118-generic_5.15.0-118.128_amd64.deb

Package: linux-image-5.15.0-119-generic
Architecture: amd64
Depends: kmod, linux-base (>= 4.5ubuntu1~16.04.1), linux-modules-5.15.0-119-generic
Description: Signed kernel image generic
 Package: linux-image-1.2.3-4-generic is no package but a line of a description

Package: linux-image-unsigned-5.15.0-120-generic
Architecture: amd64

Package: linux-image-5.15.0-1066-aws
Architecture: amd64

Package: linux-image-5.15.0-119-generic-64k
Architecture: arm64

Package: linux-image-generic
Architecture: amd64

Package: linux-modules-nvidia-535-server-5.15.0-118-generic
Architecture: amd64

Package: linux-modules-nvidia-535-server-open-5.15.0-118-generic
Architecture: amd64

Package: linux-modules-nvidia-535-5.15.0-118-generic
Architecture: amd64

Package: linux-modules-nvidia-550-server-5.15.0-119-generic
Architecture: amd64
"""


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gz", "xz"])
def test_an_index_tells_kernels_of_a_flavour(pack: Callable[[bytes], bytes]) -> None:
    found = apt_kernels(pack(INDEX))
    assert found == ("5.15.0-118-generic", "5.15.0-119-generic", "5.15.0-120-generic")


def test_other_flavours_are_others() -> None:
    assert apt_kernels(INDEX, "aws") == ("5.15.0-1066-aws",)
    assert apt_kernels(INDEX, "generic-64k") == ("5.15.0-119-generic-64k",)


def test_a_large_index_is_read_in_pieces() -> None:
    padding = b"".join(b"Package: package-%d\nDescription: %s\n\n" % (n, b"x" * 200) for n in range(20_000))
    assert apt_kernels(gzip.compress(padding + INDEX))[-1] == "5.15.0-120-generic"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no line 'Package: …' in it"),
        (b"<html>404</html>", "no line 'Package: …' in it"),
        (gzip.compress(INDEX)[:-20], "ends in the middle"),
        (lzma.compress(INDEX)[:-60], "ends in the middle|damaged"),
        (b"\x1f\x8bnothing", "damaged"),
        (b"\xfd7zXZ\x00nothing" * 9, "damaged"),
        (b"x" * (3 << 20), "a line of more than a megabyte"),
    ],
)
def test_what_is_no_index_is_told(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=f"apt index: .*({says})"):
        apt_kernels(data)


def test_what_unpacks_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "APT_INDEX", 1 << 20)
    with pytest.raises(ValueError, match="unpacks to too much: 1048576 are allowed"):
        apt_kernels(gzip.compress(b"Package: x\n" * (1 << 20)))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert apt_kernels(data) == () or b"linux-image" in data
