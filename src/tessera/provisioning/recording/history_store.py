"""Keeps the provisioning history in the ConfigMap ``provisioning-records``: read once, written soon after a change.

Only the leader writes it, and it replaces the content. Unreadable lines are set aside within the ConfigMap and reported
in an Event.
"""

import logging

from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.resources import CONFIGMAPS
from tessera.kube.runtime import KubeRuntime
from tessera.provisioning.history import BROKEN_KEY, ProvisioningHistory

_log = logging.getLogger(__name__)

RECORDS_NAME = "provisioning-records"


class HistoryStore:
    """Reads and writes the history in the cluster.

    Args:
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
        namespace: namespace of the ConfigMap.
        most: maximum number of nodes' records, and of pods'.
        events: writes events about unreadable lines.

    Attributes:
        history: the history.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        namespace: str,
        most: int,
        events: EventRecorder,
    ) -> None:
        self.history = ProvisioningHistory(most)
        self._namespace = namespace
        self._events = events
        self._map = PersistentConfigMap(
            runtime.client,
            runtime.clock,
            namespace=namespace,
            name=RECORDS_NAME,
            data=self.history.config_map_data,
            rng=runtime.rng,
            may_act=runtime.may_act,
        )

    async def load(self) -> None:
        """Reads the ConfigMap; retries until the server answers. Without the right to read it starts empty."""
        self._report_faults(self.history.load(await self._map.load()))

    def changed(self) -> None:
        """Requests a write of the history."""
        self._map.mark_changed()

    async def run(self) -> None:
        """Writes changes until cancelled."""
        await self._map.run()

    async def flush(self) -> None:
        """Writes now.

        Raises:
            ConnectionError: the server gave no answer, or this replica does not lead any more.
            ApiError: the server refused.
        """
        await self._map.flush()

    def _report_faults(self, faults: list[str]) -> None:
        if not faults:
            return
        text = f"{len(faults)} records cannot be read and are set aside under {BROKEN_KEY}; the first: {faults[0]}"
        _log.warning("ConfigMap %s/%s: %s", self._namespace, RECORDS_NAME, text)
        about = make_reference(CONFIGMAPS, RECORDS_NAME, self._namespace)
        self._events.record(about, "RecordsUnreadable", text, type="Warning")
        self._map.mark_changed()
