"""CDI files of prepared claims: one file for each claim, one device in it for each device of the claim.

A container may use only some devices of a claim, and several claims. The variable of its last device wins, so NVIDIA's
runtime finds the devices by their mounts (``docs/decisions/container-environment.md``). A claim's name is never used
for other devices: runtimes remember files.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tessera.agent.base.device_plugin import define_device, environment, write_cdi_file
from tessera.agent.base.settings import ContainerEdits
from tessera.nvml.interface import DeviceFile

_log = logging.getLogger(__name__)

_NONE = ContainerEdits({}, ())


class ClaimCdiFolder:
    """Our files for claims in the folder that the container runtime reads.

    Args:
        path: the folder; made when needed.
        driver: the driver's name.
    """

    def __init__(self, path: Path, driver: str) -> None:
        self._path = path
        self._kind = f"k8s.{driver}/claim"
        self._prefix = f"k8s.{driver}-claim_"

    def name(self, uid: str, device: str) -> str:
        """The full CDI name of a claim's device."""
        return f"{self._kind}={uid}-{device}"

    def write(
        self,
        uid: str,
        devices: Mapping[str, tuple[str, Sequence[DeviceFile]]],
        edits: Mapping[str, ContainerEdits],
    ) -> None:
        """Defines the devices of a claim.

        Args:
            uid: of the claim.
            devices: by device, its UUID and the files that a container must be able to open to use it.
            edits: by device that an MPS daemon serves, what a client of the daemon needs.

        Raises:
            OSError: the folder cannot be written.
        """
        env = environment([each for each, _ in devices.values()])
        write_cdi_file(
            self._path / f"{self._prefix}{uid}.json",
            self._kind,
            [
                define_device(
                    f"{uid}-{device}",
                    {**env, **edits.get(device, _NONE).envs},
                    files,
                    mounted=(uuid,) if files else (),
                    folders=edits.get(device, _NONE).mounts,
                )
                for device, (uuid, files) in devices.items()
            ],
        )

    def remove(self, uid: str) -> None:
        """Removes the definitions of a claim, if there are any.

        Raises:
            OSError: the file cannot be removed.
        """
        (self._path / f"{self._prefix}{uid}.json").unlink(missing_ok=True)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Removes the files of claims that are no longer prepared."""
        kept = {f"{self._prefix}{uid}.json" for uid in uids}
        for path in [*self._path.glob(f"{self._prefix}*.json"), *self._path.glob(f".{self._prefix}*.new")]:
            if path.name not in kept:
                _log.info("removing stale CDI file %s", path)
                path.unlink(missing_ok=True)
