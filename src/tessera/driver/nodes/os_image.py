"""Reads a node's operating system from the one line that kubelet reports about it.

Kubelet reports ``PRETTY_NAME`` of os-release at registration, up to a minute before Node Feature Discovery labels the
node. The texts are the distributions' own. Each row of the table turns one family of them back into the ``ID`` and
``VERSION_ID`` of image names. A text that matches no row is unknown, not guessed.
"""

import re
from collections.abc import Callable

import msgspec

from tessera.limits.nodes import OS_IMAGE


class OsRelease(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of os-release that matter here.

    Attributes:
        id: its ``ID``.
        version: its ``VERSION_ID``.
        ostree: its ``OSTREE_VERSION``, on RHCOS only; the tag of Driver Toolkit images.
    """

    id: str
    version: str
    ostree: str = ""


def parse_os_image(text: str) -> OsRelease | None:
    """The operating system behind ``status.nodeInfo.osImage``; None if the text matches no known system."""
    for pattern, made in _TABLE:
        found = pattern.match(text[:OS_IMAGE])
        if found is not None:
            return made(found)
    return None


def _version_as_written(os_id: str) -> Callable[[re.Match[str]], OsRelease]:
    """Reads ``VERSION_ID`` from the text unchanged."""
    return lambda found: OsRelease(id=os_id, version=found[1])


def _coreos(found: re.Match[str]) -> OsRelease:
    """RHCOS: ``415.92.…`` is OpenShift 4.15 on RHEL 9.2, with ``ID=rhcos``; ``9.6.…``, since 4.19, has ``ID=rhel``."""
    ostree, first, second = found[1], found[2], found[3]
    if len(first) >= 2 and first[0] == "4":
        return OsRelease(id="rhcos", version=f"4.{first[1:]}", ostree=ostree)
    return OsRelease(id="rhel", version=f"{first}.{second}", ostree=ostree)


def _service_pack(os_id: str) -> Callable[[re.Match[str]], OsRelease]:
    """Reads ``15 SP5`` as ``VERSION_ID`` 15.5."""
    return lambda found: OsRelease(id=os_id, version=found[1] + (f".{found[2]}" if found[2] else ""))


def _unversioned(os_id: str) -> Callable[[re.Match[str]], OsRelease]:
    """Reads a text without a version."""
    return lambda _found: OsRelease(id=os_id, version="")


_TABLE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], OsRelease]], ...] = (
    # "Ubuntu 22.04.4 LTS": VERSION_ID has no point release.
    (re.compile(r"Ubuntu (?:Core )?(\d\d\.\d\d)\b"), _version_as_written("ubuntu")),
    # "Red Hat Enterprise Linux CoreOS 415.92.202402130021-0 (Plow)", "… CoreOS 9.8.20260817-0 (Plow)".
    (re.compile(r"Red Hat Enterprise Linux CoreOS ((\d+)\.(\d+)\.[\w.-]+)"), _coreos),
    (re.compile(r"Red Hat Enterprise Linux(?: Server)? (\d+(?:\.\d+)?)\b"), _version_as_written("rhel")),
    (re.compile(r"Rocky Linux (\d+(?:\.\d+)?)\b"), _version_as_written("rocky")),
    (re.compile(r"AlmaLinux (\d+(?:\.\d+)?)\b"), _version_as_written("almalinux")),
    (re.compile(r"Oracle Linux Server (\d+(?:\.\d+)?)\b"), _version_as_written("ol")),
    (re.compile(r"CentOS (?:Linux|Stream) (\d+)\b"), _version_as_written("centos")),
    # "Fedora CoreOS 35.20220424.3.0": ID is fedora and VERSION_ID 35.
    (re.compile(r"Fedora (?:CoreOS|Linux) (\d+)\b"), _version_as_written("fedora")),
    (re.compile(r"Debian GNU/Linux (\d+)\b"), _version_as_written("debian")),
    (re.compile(r"SUSE Linux Enterprise Server (\d+)(?: SP(\d+))?"), _service_pack("sles")),
    (re.compile(r"SUSE Linux Enterprise Micro (\d+\.\d+)"), _version_as_written("sle-micro")),
    (re.compile(r"SUSE Linux Micro (\d+\.\d+)"), _version_as_written("sl-micro")),
    (re.compile(r"openSUSE Leap (\d+\.\d+)"), _version_as_written("opensuse-leap")),
    # "Amazon Linux 2", "Amazon Linux 2023.4.20240528": VERSION_ID is the first number.
    (re.compile(r"Amazon Linux (\d+)\b"), _version_as_written("amzn")),
    (re.compile(r"Bottlerocket OS (\d+\.\d+\.\d+)"), _version_as_written("bottlerocket")),
    (re.compile(r"Talos \((v[\w.-]+)\)"), _version_as_written("talos")),
    (re.compile(r"Flatcar Container Linux by Kinvolk (\d+\.\d+\.\d+)"), _version_as_written("flatcar")),
    (re.compile(r"Garden Linux (\d+(?:\.\d+)*)"), _version_as_written("gardenlinux")),
    (re.compile(r"Microsoft Azure Linux (\d+\.\d+)"), _version_as_written("azurelinux")),
    (re.compile(r"Container-Optimized OS from Google"), _unversioned("cos")),
)
