"""Unix sockets of a plugin folder: makes names that fit, removes leftover sockets, identifies files.

A socket's path may have 107 bytes (``sun_path`` in sys/un.h, less the final zero). Kubelet joins a plugin's socket name
with its own view of the folder, so the longer of that and ours counts.
"""

import glob
import os
import socket
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

#: Folder in which kubelet looks for plugins (``DevicePluginPath``).
PLUGIN_DIR = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = "kubelet.sock"
#: Folder in which kubelet looks for the sockets by which drivers of claims register.
REGISTRY_DIR = Path("/var/lib/kubelet/plugins_registry")
#: Folder in which each driver of claims has a folder for the sockets that kubelet calls.
CLAIM_PLUGIN_DIR = Path("/var/lib/kubelet/plugins")
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

#: Prefix of every socket that :func:`plugin_socket` names.
PREFIX = "tessera-"
#: Identifies a file, and distinguishes it from a later one of the same name.
FileId = tuple[int, int, int]
_LONGEST_PATH = 107


def plugin_socket(folder: Path, resource_name: str) -> Path:
    """Makes a new, unique name for a plugin's socket, so that old and new plugin can run side by side.

    Raises:
        ValueError: the folder's path leaves no room for a name.
    """
    token = os.urandom(4).hex()
    room = _LONGEST_PATH - max(len(os.fsencode(folder)), len(os.fsencode(PLUGIN_DIR))) - 1
    readable = f"{PREFIX}{resource_name.rsplit('/', 1)[-1]}-{token}.sock"
    hashed = f"{PREFIX}{blake2b(resource_name.encode(), digest_size=4).hexdigest()}-{token}.sock"
    for name in (readable, hashed):
        if len(os.fsencode(name)) <= room:
            return folder / name
    raise ValueError(
        f"plugin folder {folder}: a socket path may have {_LONGEST_PATH} bytes, of which {hashed} needs "
        f"{len(hashed)}; use a folder with a shorter path"
    )


def claim_sockets(driver: str, registry: Path, folder: Path) -> tuple[Path, Path]:
    """Makes new, unique names for the two sockets of a driver of claims: one to register by, one to be called on.

    Raises:
        ValueError: a folder's path leaves no room for a name.
    """
    token = os.urandom(4).hex()
    sockets = registry / f"{driver}-{token}-reg.sock", folder / f"{token}.sock"
    for socket_, real in zip(sockets, (REGISTRY_DIR, CLAIM_PLUGIN_DIR / driver), strict=True):
        longest = max(len(os.fsencode(socket_)), len(os.fsencode(real / socket_.name)))
        if longest > _LONGEST_PATH:
            raise ValueError(f"socket {socket_}: its path has {longest} bytes and may have {_LONGEST_PATH}")
    return sockets


def make_newest(path: Path) -> int:
    """Gives a new socket a later time than all others in its folder have; returns that time, in ns since 1970.

    The kernel's own would not do: two sockets that are made within a tick, some ms, may have the same time, and one
    that is made after the machine's clock was set back an earlier one.
    """
    times = [path.stat().st_mtime_ns]
    for other in set(path.parent.glob("*.sock")) - {path}:
        with suppress(FileNotFoundError):
            times.append(other.stat().st_mtime_ns + 1)
    os.utime(path, ns=(max(times), max(times)))
    return max(times)


def list_plugin_sockets(path: Path) -> frozenset[str]:
    """Names of the other sockets in the folder that serve the same resource as ``path``."""
    stem = path.name[: -len("01234567.sock")]
    return frozenset(other.name for other in path.parent.glob(f"{glob.escape(stem)}????????.sock")) - {path.name}


def remove_leftovers(folder: Path, prefix: str = PREFIX) -> list[Path]:
    """Removes the sockets in ``folder`` whose names begin so and that no process listens on; returns their paths.

    Sockets of another agent that still runs, during an upgrade, stay.
    """
    dead = [path for path in sorted(folder.glob(f"{glob.escape(prefix)}*.sock")) if not is_listening(path)]
    for path in dead:
        path.unlink(missing_ok=True)
    return dead


def is_listening(path: Path) -> bool:
    """True if a process listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # full backlog, no permission: a process listens
            return True
    return True


def file_identity(path: Path) -> FileId | None:
    """Identifies the file now at a path; ``None`` if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
