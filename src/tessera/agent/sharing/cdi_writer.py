"""What the container runtime is told: the devices there are, and the set of each container that needs one.

See ``docs/decisions/cdi-sets.md``. A set is written at Allocate with the devices of that answer, completed before the
container starts with those of its other resources, and kept while kubelet tells of the container.
"""

import logging
from collections.abc import Callable, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.sharing.allocate_response import needs_set, set_name, unique
from tessera.agent.sharing.cdi_specs import CdiDevice, CdiFile
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.api.sharing.devices import device_of

_log = logging.getLogger(__name__)


class CdiPublisher:
    """Keeps the CDI file.

    Args:
        specs: the file.
        occupancy: who holds what.
        joint: whether a container of this node may have been given devices of several resources.
        needed: whether containers are told of their devices by CDI now.
        changes: woken when pods come.

    Attributes:
        failed: why the file cannot be written; ``None`` if it can, or need not be.
    """

    def __init__(
        self,
        specs: CdiFile,
        occupancy: DeviceOccupancy,
        *,
        joint: Callable[[], bool],
        needed: Callable[[], bool],
        changes: ChangeNotifier,
    ) -> None:
        self._specs = specs
        self._occupancy = occupancy
        self._joint = joint
        self._needed = needed
        self._changes = changes
        self._devices: Sequence[CdiDevice] = ()
        self.failed: str | None = None

    def publish(self, devices: Sequence[CdiDevice]) -> bool:
        """Defines these devices and the sets that are held; returns whether that was done, or need not be."""
        self._devices = devices
        try:
            self._write()
        except OSError as error:
            if self._needed():
                self.failed = f"{self._specs.path} cannot be written, so that no change is offered: {error}"
                return False
        self.failed = None
        return True

    async def starting(self, resource: str, ids: Sequence[str]) -> None:
        """Makes the set of a container that is about to start name its devices of all resources.

        Raises:
            ConnectionError: kubelet does not say what they are.
            OSError: the CDI file cannot be written.
        """
        if not needs_set(unique(map(device_of, ids)), joint=self._joint()):
            return
        try:
            await self._complete(resource, ids)
        except OSError as error:
            if self._needed():
                raise
            _log.warning("the CDI set of a container is not made, which nothing refers to now: %s", error)

    async def _complete(self, resource: str, ids: Sequence[str]) -> None:
        self._occupancy.given(resource, ids, starts=True)
        self._specs.ensure_set(set_name(ids), unique(map(device_of, ids)))
        if self._joint():
            await self._occupancy.learn(resource, ids, self._changes)
            self._write()

    def _write(self) -> None:
        self._specs.publish(self._devices, self._occupancy.sets(joint=self._joint()))
