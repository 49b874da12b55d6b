"""Keeps what requests for new nodes ask for steady while pods come and go. Pure.

A request that would ask for other amounts is deleted and made anew. An autoscaler needs time to answer one: Cluster
Autoscaler looks every 10 s, Karpenter collects pods for up to 10 s. So a pod that comes and goes could replace the
requests of all others before they are answered. Amounts stay for :data:`STEADY` seconds therefore.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tessera.controller.objects.resource_amounts import Amounts
from tessera.scale_up.new_nodes import NewNodes

#: Seconds for which a group's requests ask for the same amounts: some looks of an autoscaler.
STEADY = 60.0


class _Asked(NamedTuple):
    """What the requests of a group ask for, and since when."""

    least: Amounts
    since: float


class SteadyAmounts:
    """Replaces amounts that changed too early by those before.

    Attributes:
        due: when the first change that waits is made; None if none waits.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        #: By group that needs nodes.
        self._asked: Mapping[str, _Asked] = {}

    def hold(self, needed: Mapping[str, NewNodes], now: float) -> Mapping[str, NewNodes]:
        """Returns the nodes to ask for, with the amounts to ask for now.

        Args:
            needed: the nodes that are needed, by group.
            now: the time, in seconds.
        """
        asked: dict[str, _Asked] = {}
        for name, each in needed.items():
            before = self._asked.get(name)
            is_steady = before is not None and (before.least == each.least or now < before.since + STEADY)
            asked[name] = before if before is not None and is_steady else _Asked(each.least, now)
        self._asked = asked
        changes = [one.since + STEADY for name, one in asked.items() if one.least != needed[name].least]
        self.due = min(changes, default=None)
        return {name: msgspec.structs.replace(each, least=asked[name].least) for name, each in needed.items()}
