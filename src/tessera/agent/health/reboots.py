"""Asks for a reboot of the node for a card that needs one: once for a fault, and never again if it did not help.

How the node is rebooted is the administrator's choice (:mod:`tessera.agent.base.node_reboot`): systemd or a command
reboots it at once, so no pod may hold any card of the node; a file on the host or an annotation asks another tool,
which drains the node first. The request is on disk,
flushed, before it is made, so an agent that is killed does not ask twice over boots; one that was killed before it had
asked asks in the same boot. A card that is well again may ask anew.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from tessera.agent.base.runtime import RebootNode
from tessera.agent.base.state_file import StateFile
from tessera.agent.health.executor import CardHost

#: Seconds from the error to the request, in which an error that passes can pass and pods can be evicted.
REBOOT_DELAY = 120.0
#: Seconds after which a request that failed is made again.
REBOOT_RETRY = 3600.0


class StoredReboots(msgspec.Struct, frozen=True):
    """The content of the file: by card, the boot in which a reboot was asked for, and the card asked for now."""

    boots: dict[str, str] = {}
    pending: str = ""


class RepairReboots:
    """Asks for reboots.

    Args:
        reboot: reboots the node, or asks for that.
        file: keeps the requests over restarts and reboots.
        host: reports if any card of the node is in use.
    """

    def __init__(self, reboot: RebootNode, *, file: Path, host: CardHost) -> None:
        self._reboot = reboot
        self._file = StateFile(file, StoredReboots)
        self._host = host
        #: The requests for cards that are not well since.
        stored = self._file.load() or StoredReboots()
        self._asked = dict(stored.boots)
        #: The card for which a killed agent may not have asked.
        self._pending = stored.pending

    async def request(self, gpu: str, boot: str, *, drains: bool) -> bool:
        """Asks for a reboot, if none was asked for the card and no pod stands in the way; returns true if it did.

        Args:
            gpu: the card that needs it.
            boot: the node's boot id; empty while unknown, and then nothing is asked.
            drains: true if whoever reboots the node drains it first, so that cards may be in use.

        Raises:
            OSError: the request cannot be kept, or is refused.
        """
        made = gpu in self._asked and (gpu, boot) != (self._pending, self._asked[gpu])
        if not boot or made or not (drains or await self._is_node_empty()):
            return False
        self._keep(self._asked | {gpu: boot}, pending=gpu)
        try:
            await self._reboot()
        except OSError:
            self._keep({uuid: each for uuid, each in self._asked.items() if uuid != gpu})
            raise
        self._pending = ""
        with suppress(OSError):  # a restarted agent asks again, which changes nothing
            self._keep(self._asked)
        return True

    def forget(self, gpu: str) -> None:
        """Takes in that a card is well: its next fault may ask again.

        Raises:
            OSError: that cannot be kept.
        """
        if gpu in self._asked:
            self._keep({uuid: each for uuid, each in self._asked.items() if uuid != gpu})

    async def _is_node_empty(self) -> bool:
        try:
            return await self._host.is_node_empty()
        except ConnectionError:
            return False

    def _keep(self, asked: dict[str, str], pending: str = "") -> None:
        self._file.save(StoredReboots(asked, pending), flush=True)
        self._asked, self._pending = asked, pending
