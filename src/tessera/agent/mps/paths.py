"""The folders of MPS, and the edits that make a container a client of a daemon. Pure.

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

#: The MPS root as containers see it (k8s-device-plugin, ``mps.ContainerRoot``).
CONTAINER_ROOT = PurePosixPath("/mps")
#: The shared memory as containers see it.
CONTAINER_SHM = "/dev/shm"  # noqa: S108 - a mount point, not a temporary file
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"


class MpsPaths(msgspec.Struct, frozen=True):
    """The folders of MPS below one root; the root as the daemon, the host or a container sees it."""

    root: Path

    def pipe(self, resource: str) -> Path:
        """The pipe directory of a resource's daemon, through which it takes commands and clients."""
        return self.root / resource / "pipe"

    def log(self, resource: str) -> Path:
        """The log folder of a resource's daemon; containers never see it."""
        return self.root / resource / "log"

    @property
    def shm(self) -> Path:
        """Shared memory of all daemons and their clients."""
        return self.root / "shm"


class MpsEdits(msgspec.Struct, frozen=True):
    """Edits that a container of a resource gets in Allocate, besides its devices."""

    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]


def container_edits(resource: str, host: MpsPaths) -> MpsEdits:
    """Returns the edits that make a container a client of the resource's daemon.

    Args:
        resource: the resource of the daemon.
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
