"""Operating systems that simulated nodes can run, by the name that driver images carry for them: ``ubuntu22.04``.

Texts and kernels are those of real releases. A kernel is only a name here: no node runs one.
"""

from difflib import get_close_matches

import msgspec

from tessera.driver.build.settings import KERNEL
from tessera.limits.messages import ECHOED


class OperatingSystem(msgspec.Struct, frozen=True, kw_only=True):
    """One operating system.

    Attributes:
        os_image: ``PRETTY_NAME`` of its os-release, which kubelet reports.
        kernel: ``uname -r`` of one of its releases.
    """

    os_image: str
    kernel: str


#: By ``ID`` and ``VERSION_ID`` of os-release; of one ``ID`` the newest comes last.
SYSTEMS: dict[str, OperatingSystem] = {
    "ubuntu22.04": OperatingSystem(os_image="Ubuntu 22.04.4 LTS", kernel="5.15.0-69-generic"),
    "ubuntu24.04": OperatingSystem(os_image="Ubuntu 24.04.1 LTS", kernel="6.8.0-45-generic"),
    "rhcos4.13": OperatingSystem(
        os_image="Red Hat Enterprise Linux CoreOS 413.92.202307260246-0 (Plow)",
        kernel="5.14.0-284.25.1.el9_2.x86_64",
    ),
    "rhcos4.15": OperatingSystem(
        os_image="Red Hat Enterprise Linux CoreOS 415.92.202403191241-0 (Plow)",
        kernel="5.14.0-284.55.1.el9_2.x86_64",
    ),
    "rhel9.4": OperatingSystem(os_image="Red Hat Enterprise Linux 9.4 (Plow)", kernel="5.14.0-427.13.1.el9_4.x86_64"),
    "rocky9.4": OperatingSystem(os_image="Rocky Linux 9.4 (Blue Onyx)", kernel="5.14.0-427.13.1.el9_4.x86_64"),
    "sles15.5": OperatingSystem(os_image="SUSE Linux Enterprise Server 15 SP5", kernel="5.14.21-150500.55.19-default"),
    "debian12": OperatingSystem(os_image="Debian GNU/Linux 12 (bookworm)", kernel="6.1.0-21-amd64"),
}


def find_system(name: str) -> OperatingSystem:
    """The system of a name; without a version, the newest of its ``ID``.

    Raises:
        ValueError: there is none; the text lists those that there are.
    """
    newest = {known.rstrip("0123456789."): system for known, system in SYSTEMS.items()}
    found = SYSTEMS.get(name) or newest.get(name)
    if found is None:
        close = get_close_matches(name[:63], SYSTEMS, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"operating system {name[:ECHOED]!r}: the lab has {', '.join(SYSTEMS)}{meant}")
    return found


def parse_system(system: str, kernel: str) -> OperatingSystem:
    """The operating system for the given name and kernel; an empty string means not given.

    Raises:
        ValueError: there is no such system, or no kernel has such a name.
    """
    found = find_system(system) if system else OperatingSystem(os_image="", kernel="")
    if not kernel:
        return found
    KERNEL.require(kernel, "kernel")
    return msgspec.structs.replace(found, kernel=kernel)
