"""A root file system as a container runtime sets it up: read-only, with a process file system, for one user."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
from release.image.root import PYTHON

#: A mount point of the image that the tests do not use.
_EMULATOR = "/var/lib/tessera"


class UnpackedImage(msgspec.Struct, frozen=True):
    """An unpacked image, whose programs run in a mount namespace of their own: nothing is mounted on this machine.

    Attributes:
        root: the folder that becomes ``/``.
        mounts: folder in the image -> folder of this machine that a pod would mount there.
        user: the user's ID; its group's is the same.
        emulator: qemu's program for the image's processor, where that is not this machine's. It runs one process: what
            that process would start from the image does not run.
    """

    root: Path
    mounts: Mapping[str, Path] = {}
    user: int = 65532
    emulator: Path | None = None

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command in the image."""
        root = shlex.quote(str(self.root))
        mounts = dict(self.mounts)
        if self.emulator:
            mounts[_EMULATOR] = self.emulator.parent
            # It loads programs of the processor, and no scripts.
            start = (f"/usr/bin/python{PYTHON}", "-Iu", "/usr/local/bin/tessera") if command[0] == "tessera" else ()
            command = (f"{_EMULATOR}/{self.emulator.name}", *(start or command[:1]), *command[1:])
        script = [
            f"mount --bind {root} {root}",
            *(f"mount --rbind {shlex.quote(str(there))} {root}{here}" for here, there in mounts.items()),
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
            f"mount -o remount,bind,ro {root}",
            f'exec chroot --userspec={self.user}:{self.user} {root} "$@"',
        ]
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "; ".join(script), "sh", *command]

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command), input=text, capture_output=True, text=True, env=environment(), timeout=300
        )


def environment() -> dict[str, str]:
    """The environment that the image's configuration gives."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def allowed() -> bool:
    """Whether this process may make the namespaces; the tests run as root where images are built."""
    return os.geteuid() == 0
