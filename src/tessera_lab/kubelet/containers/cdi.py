"""Container Device Interface as the container runtime applies it: turns device names into edits of the container.

Reads every JSON file of the node's CDI folders when a container is created, and applies the edits of the requested
devices. It keeps only edits that a simulated container can show: environment, device nodes, mounts. Real runtimes read
the folders in a thread of their own after a change, and may be late (:attr:`CdiRegistry.is_late`). Sources: CNCF
container-device-interface specification 0.8, ``pkg/cdi/cache.go``; runc for a mount whose source is gone.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec


class CdiError(Exception):
    """The runtime cannot create the container; the text is containerd's."""


class CdiEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Edits that CDI makes to a container."""

    env: Mapping[str, str] = {}
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()


class CdiRegistry:
    """The CDI devices of one node.

    Args:
        folders: folders of the files, in rising priority (``/etc/cdi``, ``/var/run/cdi``).

    Attributes:
        is_late: the runtime has not noticed changes since this was set, and goes by what it read before.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self.is_late = False
        self._found: dict[str, list[Any]] = {}
        self._read: dict[str, tuple[tuple[int, int, int], Mapping[str, list[Any]]]] = {}

    def edits(self, names: Sequence[str]) -> CdiEdits:
        """The edits of the devices ``vendor/class=device``, in order.

        Raises:
            CdiError: no file describes one of them, or a file of the folders that is mounted is gone.
        """
        if not names:
            return CdiEdits()
        devices = self._found = self._found if self.is_late else self._devices()
        missing = [name for name in names if name not in devices]
        if missing:
            raise CdiError(
                "failed to generate spec: CDI device injection failed: unresolvable CDI devices " + ", ".join(missing)
            )
        env: dict[str, str] = {}
        nodes: list[str] = []
        mounts: list[str] = []
        for edit in (edit for name in names for edit in devices[name]):
            env.update(entry.split("=", 1) for entry in edit.get("env") or () if "=" in entry)
            nodes += [node["path"] for node in edit.get("deviceNodes") or ()]
            mounts += [self._mounted(mount) for mount in edit.get("mounts") or ()]
        return CdiEdits(env=env, device_nodes=tuple(dict.fromkeys(nodes)), mounts=tuple(dict.fromkeys(mounts)))

    def _mounted(self, mount: Mapping[str, Any]) -> str:
        """Returns where a mount is seen. Only files of the CDI folders are looked for: a node has no others here."""
        source = Path(mount["hostPath"])
        if source.parent in self._folders and not source.exists():
            raise CdiError(
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: error"
                f' mounting "{source}" to rootfs at "{mount["containerPath"]}": no such file or directory'
            )
        path: str = mount["containerPath"]
        return path

    def _devices(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        seen: set[str] = set()
        for folder in self._folders:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.name.endswith(".json"):
                    seen.add(entry.path)
                    found.update(self._file(entry))
        self._read = {path: read for path, read in self._read.items() if path in seen}
        return found

    def _file(self, entry: os.DirEntry[str]) -> Mapping[str, list[Any]]:
        """Returns a file's devices; skips a file that is not valid CDI, as the runtime does."""
        try:
            status = entry.stat()
            identity = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._read.get(entry.path)
            if known is None or known[0] != identity:
                known = self._read[entry.path] = (identity, _parse(Path(entry.path).read_bytes()))
        except FileNotFoundError:
            return {}
        return known[1]


def _parse(content: bytes) -> Mapping[str, list[Any]]:
    try:
        spec = msgspec.json.decode(content)
        shared = [spec["containerEdits"]] if spec.get("containerEdits") else []
        return {
            f"{spec['kind']}={device['name']}": [*shared, device.get("containerEdits") or {}]
            for device in spec["devices"]
        }
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return {}
