"""The folders of MPS, and what a container gets to be a client of a daemon. Pure.

Paths are those of NVIDIA's device plugin: below the root ``<resource>/pipe`` and ``<resource>/log``, one folder for
each resource, and ``shm`` for all. Containers see the pipe directory below ``/mps`` and the shared memory as their
``/dev/shm``, so their pods need no ``hostIPC``. Nothing of another resource is mounted.

MPS serves one user at a time: a client of another UID waits until the server of the first has no clients left (NVIDIA
MPS documentation, on the control daemon). Pods that share a GPU have to run as the same user.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

from tessera.kubelet.interfaces import Mount

#: Where containers see the MPS root (k8s-device-plugin, ``mps.ContainerRoot``).
CONTAINER_ROOT = PurePosixPath("/mps")
#: Where containers see the shared memory.
CONTAINER_SHM = "/dev/shm"  # noqa: S108 - a mount point, not a temporary file
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"


class MpsPaths(msgspec.Struct, frozen=True):
    """The folders of MPS below one root; the root as the daemon, the host or a container sees it."""

    root: Path

    def pipe(self, resource: str) -> Path:
        """Where the daemon of a resource is talked to."""
        return self.root / resource / "pipe"

    def log(self, resource: str) -> Path:
        """Where the daemon of a resource writes what it does; never seen by containers."""
        return self.root / resource / "log"

    @property
    def shm(self) -> Path:
        """Shared memory of all daemons and their clients."""
        return self.root / "shm"


class MpsEdits(msgspec.Struct, frozen=True):
    """What a container of a resource gets in Allocate, besides its devices."""

    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]


def container_edits(resource: str, host: MpsPaths) -> MpsEdits:
    """What a container needs to be a client of the resource's daemon.

    Args:
        resource: whose daemon.
        host: the MPS folders as kubelet sees them.
    """
    pipe = str(CONTAINER_ROOT / resource / "pipe")
    return MpsEdits(
        envs={PIPE_VARIABLE: pipe},
        mounts=(
            Mount(container_path=pipe, host_path=str(host.pipe(resource)), read_only=False),
            Mount(container_path=CONTAINER_SHM, host_path=str(host.shm), read_only=False),
        ),
    )
