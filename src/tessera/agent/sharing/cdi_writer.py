"""Writes the CDI file: the devices of the node, and the set of each container that needs one.

See ``docs/decisions/cdi-sets.md``. The writer defines a set at Allocate with the devices of that answer, completes it
before the container starts with those of its other resources, and keeps it while kubelet lists the container.
"""

import logging
from collections.abc import Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.sharing.allocate_response import needs_set, set_name, unique
from tessera.agent.sharing.cdi_specs import CdiDevice, CdiFile
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.api.sharing.devices import device_of

_log = logging.getLogger(__name__)


class CdiPublisher:
    """Keeps the CDI file up to date.

    Args:
        file: the CDI file.
        occupancy: the containers that hold devices.
        changes: notified when pods come.

    Attributes:
        file: the CDI file.
        occupancy: the containers that hold devices.
        failed: why the file cannot be written; ``None`` if it can be written or is not needed.
    """

    def __init__(self, file: CdiFile, occupancy: DeviceOccupancy, changes: ChangeNotifier) -> None:
        self.file = file
        self.occupancy = occupancy
        self._changes = changes
        self._devices: Sequence[CdiDevice] = ()
        self.failed: str | None = None

    def publish(self, devices: Sequence[CdiDevice], *, joint: bool, needed: bool) -> bool:
        """Defines these devices and the sets that containers hold.

        Args:
            devices: in the order of their indexes.
            joint: true if a container of this node may have devices of several resources.
            needed: true if containers learn of their devices by CDI now.

        Returns:
            True if the file is written, or is not needed.
        """
        self._devices = devices
        try:
            self._write(joint=joint)
        except OSError as error:
            if needed:
                self.failed = f"{self.file.path} cannot be written, so that no change is offered: {error}"
                return False
        self.failed = None
        return True

    async def starting(self, resource: str, ids: Sequence[str], *, joint: bool, needed: bool) -> None:
        """Writes the set of a container that is about to start, with its devices of all resources.

        ``joint`` and ``needed`` are those of :meth:`publish`.

        Raises:
            ConnectionError: kubelet does not list the container's devices.
            OSError: the CDI file cannot be written.
        """
        if not needs_set(unique(map(device_of, ids)), joint=joint):
            return
        try:
            await self._complete(resource, ids, joint=joint)
        except OSError as error:
            if needed:
                raise
            _log.warning("the CDI set of a container is not made, which nothing refers to now: %s", error)

    async def _complete(self, resource: str, ids: Sequence[str], *, joint: bool) -> None:
        self.occupancy.given(resource, ids, starts=True)
        self.file.ensure_set(set_name(ids), unique(map(device_of, ids)))
        if joint:
            await self.occupancy.learn(resource, ids, self._changes)
            self._write(joint=joint)

    def _write(self, *, joint: bool) -> None:
        self.file.publish(self._devices, self.occupancy.sets(joint=joint))
