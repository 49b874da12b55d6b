"""Sets the administrator's annotation on Nodes whose agent asks for a reboot, and removes it once they have booted.

An agent may write only annotations of Tessera's on its Node (deploy/policies/agent.yaml), and the administrator's has a
key of their own, which another controller watches: that one drains and reboots the node. An agent's request names the
boot that is to end, so it is over with the boot, also if nobody was there to take it back.

:class:`RepairSettings` follows the ConfigMap of what is done about cards with faults
(:mod:`tessera.api.nodes.repairs`).
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from tessera.api.names import REBOOT_REQUESTED
from tessera.api.nodes.repairs import REPAIRS_KEY, REPAIRS_MAP, RebootWay, Repairs, asks_for_reboot, parse_repairs
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Conflict, NotFound
from tessera.kube.resources import CONFIGMAPS, NODES, ConfigMap, Node
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer, read_annotated


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


_log = logging.getLogger(__name__)

#: Seconds until a write that failed is tried again.
RETRY = 15.0
#: Seconds in which changes are collected before one round.
SETTLE = 0.2


class RebootAnnotations:
    """Keeps the annotation in step with the agents' requests.

    Args:
        client: the API server.
        settings: the annotation.
        clock: the time.
        nodes: all nodes.
    """

    def __init__(self, client: Client, settings: RepairSettings, clock: Clock, *, nodes: Informer[Node]) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._wake = asyncio.Event()
        #: The nodes with a request of their agents, by name.
        self._nodes: dict[str, Node] = {}
        settings.add_listener(self._wake.set)
        nodes.add_handler(self._node_changed, reads=read_annotated(REBOOT_REQUESTED))

    def _node_changed(self, event: WatchEvent[Node]) -> None:
        node = event.object
        if event.kind is EventKind.DELETED or REBOOT_REQUESTED not in node.metadata.annotations:
            self._nodes.pop(node.metadata.name, None)
            return
        self._nodes[node.metadata.name] = node
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        pause: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            await self._clock.sleep(SETTLE)
            changes = [(node, _find_change(node, self._settings.repairs)) for node in self._nodes.values()]
            done = [await self._write(node, change) for node, change in changes if change]
            pause = None if all(done) else RETRY

    async def _write(self, node: Node, change: dict[str, str | None]) -> bool:
        """Writes a change to the Node that was judged: a request that came since must not go with the one before."""
        name, version = node.metadata.name, node.metadata.resource_version
        try:
            body = {"metadata": {"resourceVersion": version, "annotations": change}}
            await self._client.merge_patch(NODES, name, body)
        except NotFound:
            return True
        except Conflict:
            return False
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("the annotation of node %s for its reboot cannot be written: %s", name, error)
            return False
        return True


def _find_change(node: Node, repairs: Repairs) -> dict[str, str | None]:
    """The annotations to set, or to remove by ``None``; empty if all is as it should be.

    A value of another's stays. A request that is over goes too, so that the same value from a person stays later.
    """
    boot = node.status.node_info.boot_id
    if repairs.reboot is not RebootWay.ANNOTATION or not boot:
        return {}
    key, value = repairs.annotation
    present = node.metadata.annotations.get(key)
    if asks_for_reboot(node.metadata.annotations, boot):
        return {} if present == value else {key: value}
    return {REBOOT_REQUESTED: None, **({key: None} if present == value else {})}
