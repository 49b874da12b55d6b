"""Follows the ConfigMap of what is done about cards with faults (:mod:`tessera.api.nodes.repairs`)."""

import logging
import random
from collections.abc import Callable

from tessera.api.nodes.repairs import REPAIRS_KEY, REPAIRS_MAP, Repairs, parse_repairs
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.resources import CONFIGMAPS, ConfigMap
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer

_log = logging.getLogger(__name__)


class RepairSettings:
    """What the administrator lets Tessera do; nothing while there is no file.

    A file with a mistake changes nothing while this process runs; one that starts with it does nothing.

    Args:
        client: the API server.
        namespace: Tessera's own.
        clock: for pauses between attempts.
        rng: for jitter.

    Attributes:
        repairs: what is in force.
    """

    def __init__(self, client: Client, *, namespace: str, clock: Clock, rng: random.Random) -> None:
        self.repairs = Repairs()
        self._listeners: list[Callable[[], None]] = []
        self._file = Informer(
            client,
            CONFIGMAPS,
            namespace=namespace,
            field_selector=f"metadata.name={REPAIRS_MAP}",
            clock=clock,
            rng=rng,
        )
        self._file.add_handler(self._changed)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` at each change."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follows the file until cancelled."""
        await self._file.run()

    def _changed(self, event: WatchEvent[ConfigMap]) -> None:
        text = "" if event.kind is EventKind.DELETED else event.object.data.get(REPAIRS_KEY, "")
        try:
            found = parse_repairs(text)
        except ValueError as error:
            _log.warning("%s; what was in force before stays in force", error)
            return
        if found != self.repairs:
            self.repairs = found
            for listener in self._listeners:
                listener()
