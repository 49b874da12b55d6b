"""Pools: nodes with the same operating system, kernel, architecture and page size, which can share a driver image.

The key holds the whole kernel string. A shortened one would make nodes of two architectures look alike, and the second
would never get a driver.
"""

import hashlib

import msgspec


class PoolKey(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """The properties that decide which image fits a node.

    Attributes:
        os_id: ``ID`` of os-release: ubuntu, rhel, rhcos, rocky …
        os_version: its ``VERSION_ID``: 22.04, 9.4, 4.15.
        kernel: ``uname -r`` in full: 5.15.0-69-generic, 5.14.0-284.54.1.el9_2.aarch64+64k.
        architecture: in the registries' spelling: amd64 or arm64.
        page_kib: size of a memory page in KiB, 4 or 64.
        ostree: version of RHCOS's image, which names the Driver Toolkit's images; empty on other systems.
    """

    os_id: str
    os_version: str
    kernel: str
    architecture: str
    page_kib: int = 4
    ostree: str = ""

    @property
    def text(self) -> str:
        """For messages: ``ubuntu22.04 5.15.0-69-generic amd64``."""
        pages = "" if self.page_kib == 4 else f" {self.page_kib}k pages"
        return f"{self.os_id}{self.os_version} {self.kernel} {self.architecture}{pages}"

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits: a hash of the key for names and labels."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:10]
