"""Kernels of future OpenShift releases, read from the output of ``oc`` and a file of a Driver Toolkit.

A release names its RHCOS version and its Driver Toolkit (``oc adm release info RELEASE -o json``). Only the toolkit
names the kernel (in its file ``/etc/driver-toolkit-release.json``). This module downloads nothing.
"""

import re
from typing import Any

import msgspec

from tessera.driver.coverage.kernels import NextKernel
from tessera.limits.drivers import RELEASE_DOCUMENT
from tessera.limits.messages import ECHOED

_OSTREE = re.compile(r"[0-9]+\.[0-9]+\.[0-9A-Za-z.-]{1,60}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,300}")
_OLD = re.compile(r"4(\d\d)\.")
_KERNEL = re.compile(r"\d+\.\d+\.[A-Za-z0-9._+~-]{1,110}\.(x86_64|aarch64)")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class OpenShiftRelease(msgspec.Struct, frozen=True, kw_only=True):
    """One release of OpenShift.

    Attributes:
        version: ``4.15.3``.
        machine_os: its RHCOS version, equal to ``OSTREE_VERSION`` of its nodes.
        toolkit: its Driver Toolkit, by digest.
    """

    version: str
    machine_os: str
    toolkit: str


def parse_release(data: bytes) -> OpenShiftRelease:
    """Reads the output of ``oc adm release info -o json``.

    Raises:
        ValueError: the data is not such output, or names no RHCOS version or no Driver Toolkit.
    """
    document = _document(data, "release")
    version = _text(document.get("metadata"), "version")
    machine_os = _text(_part(document, "displayVersions", "machine-os"), "Version")
    toolkit = ""
    for tag in _list(_part(document, "references", "spec"), "tags"):
        if _text(tag, "name") == "driver-toolkit":
            toolkit = _text(_part(tag, "from"), "name")
    if not _OSTREE.fullmatch(machine_os) or not _IMAGE.fullmatch(toolkit):
        raise ValueError(
            "release: no displayVersions.machine-os or no tag driver-toolkit in it; "
            "give what 'oc adm release info RELEASE -o json' prints"
        )
    return OpenShiftRelease(version=version, machine_os=machine_os, toolkit=toolkit)


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
        architecture=_ARCHITECTURES[found[1]],
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
    old = _OLD.match(machine_os)
    if old:
        return "rhcos", f"4.{int(old[1])}"
    if machine_os and not rhel:
        rhel = ".".join(machine_os.split(".")[:2])
    if not re.fullmatch(r"\d+(\.\d+)?", rhel):
        raise ValueError(f"driver-toolkit-release.json: RHEL_VERSION {rhel[:ECHOED]!r} is no version of RHEL")
    return "rhel", rhel


def _document(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > RELEASE_DOCUMENT:
        raise ValueError(f"{what}: has {len(data):,} bytes; {RELEASE_DOCUMENT} are allowed")
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{what}: no JSON object: {error}") from error


def _part(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: object, name: str) -> str:
    found = _part(value, name)
    return found if isinstance(found, str) else ""


def _list(value: object, name: str) -> list[object]:
    found = _part(value, name)
    return found if isinstance(found, list) else []
