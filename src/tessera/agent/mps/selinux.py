"""Where SELinux is enforced, containers may use a folder of the host only if its label says so.

NVIDIA's plugin gives the pipe directory the type ``container_file_t`` (k8s-device-plugin, MPS control daemon); the
shared memory needs the same, since it is a folder here and no mount of its own. What is made inside inherits the label.
"""

import os
from pathlib import Path

#: Where the kernel tells whether SELinux is enforced.
ENFORCE = Path("/sys/fs/selinux/enforce")
#: Of every container, whatever its categories: the level has none.
CONTAINER_LABEL = "system_u:object_r:container_file_t:s0"


def open_to_containers(folder: Path, enforce: Path = ENFORCE) -> None:
    """Labels a folder as one of containers; does nothing where SELinux is not enforced.

    Raises:
        OSError: the label cannot be written.
    """
    try:
        enforced = enforce.read_text(encoding="ascii").strip() == "1"
    except FileNotFoundError:
        return
    if enforced:
        os.setxattr(folder, "security.selinux", f"{CONTAINER_LABEL}\0".encode())
