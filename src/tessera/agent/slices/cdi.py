"""CDI files: they define our allocated devices for the container runtime.

One file per device ID. kubelet gives an ID to one running container at a time, and the runtime cannot resolve a name
that two CDI files define. So the claim of the next container replaces the file of the one before, by atomic rename.
Every file carries the MIG UUIDs of *all* slices of the container that it was written for: the runtime merges the files
of a container's devices, and the variables agree. The files also give the UUIDs as mounts, and leave
``CUDA_VISIBLE_DEVICES`` alone (``docs/decisions/container-environment.md``).

The agent touches only its own files, which it knows by their prefix. Simulated cards have no device files, so their
containers get the environment alone.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from tessera.agent.base.cdi_files import define_device, write_cdi_file
from tessera.api.names import CDI_KIND, VISIBLE_DEVICES
from tessera.nvml.interface import DeviceFile

_log = logging.getLogger(__name__)

_PREFIX = CDI_KIND.replace("/", "-") + "_"


def cdi_name(device_id: str) -> str:
    """The CDI name in the answer to Allocate: ``tessera.dev/mig=<device ID>``."""
    return f"{CDI_KIND}={device_id}"


def file_name(device_id: str) -> str:
    """The file that defines a device. Every character of a device ID is allowed in a file name."""
    return f"{_PREFIX}{device_id}.json"


def environment(mig_uuids: Sequence[str]) -> dict[str, str]:
    """The variable through which NVIDIA's runtime finds a container's slices."""
    return {VISIBLE_DEVICES: ",".join(mig_uuids)}


class CdiFolder:
    """Our files in the folder that the container runtime reads.

    Args:
        path: the folder; made when needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, device_id: str, mig_uuids: Sequence[str], device_files: Sequence[DeviceFile] = ()) -> None:
        """Defines a device for the container that starts next.

        Args:
            device_id: the device.
            mig_uuids: all slices of the container, this one's among them.
            device_files: files that the container must be able to open to use this device's slice.

        Raises:
            OSError: the folder cannot be written.
        """
        env = [f"{name}={value}" for name, value in environment(mig_uuids).items()]
        mounted = mig_uuids if device_files else ()
        write_cdi_file(
            self._path / file_name(device_id), CDI_KIND, [define_device(device_id, env, device_files, mounted=mounted)]
        )

    def remove(self, device_ids: Iterable[str]) -> None:
        """Removes the definitions of devices; ignores devices without a definition."""
        for device_id in device_ids:
            (self._path / file_name(device_id)).unlink(missing_ok=True)

    def keep_only(self, device_ids: Iterable[str]) -> None:
        """Removes our files that a former agent left for pods that are gone."""
        kept = {file_name(device_id) for device_id in device_ids}
        for path in list(self._path.glob(f"{_PREFIX}*.json")) + list(self._path.glob(f".{_PREFIX}*.new")):
            if path.name not in kept:
                _log.info("removing stale CDI file %s", path)
                path.unlink(missing_ok=True)
