"""A root file system as a container runtime sets it up: read-only, with a process file system, for one user."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec


class UnpackedImage(msgspec.Struct, frozen=True):
    """An unpacked image, whose programs run in a mount namespace of their own: nothing is mounted on this machine.

    Attributes:
        root: the folder that becomes ``/``.
        mounts: folder in the image -> folder of this machine that a pod would mount there.
        user: the user's ID; its group's is the same.
    """

    root: Path
    mounts: Mapping[str, Path] = {}
    user: int = 65532

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command in the image."""
        root = shlex.quote(str(self.root))
        script = [
            f"mount --bind {root} {root}",
            *(f"mount --rbind {shlex.quote(str(there))} {root}{here}" for here, there in self.mounts.items()),
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
