"""Resources that kubelet keeps on the node with a capacity of 0 long after they were offered last.

Five minutes after a plugin has ended kubelet forgets its devices, and sets the resource to 0 on the node instead of
removing it (``pkg/kubelet/nodestatus/setters.go``). Whoever reads the node then sees ``nvidia.com/gpu: 0`` beside
``nvidia.com/gpu.shared: 16`` for ever. Kubelet writes that 0 once, so that after it the name can be removed for good; a
kubelet that was started again counts its five minutes anew and may bring it back, in which case it is removed again.

Only names that this agent has offered itself are ever removed. They are kept in a file, since the five minutes may
outlast the agent.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tessera.agent.keptfile import KeptFile
from tessera.kube.resources import Node

#: Seconds after which a resource that nobody serves may be removed: kubelet's grace period of 5 min
#: (``endpointStopGracePeriod``) and some rounds of its node status, each 10 s.
GRACE = 360.0


def stale_resources(node: Node, former: Mapping[str, float], served: Collection[str], now: float) -> tuple[str, ...]:
    """The resources to be removed from a node's status.

    Args:
        node: as last seen.
        former: when each resource that is no longer offered was last offered, or last removed; seconds since 1970.
        served: resources that a plugin serves now.
        now: seconds since 1970.
    """
    shown = {**node.status.allocatable, **node.status.capacity}
    return tuple(
        sorted(
            name
            for name, since in former.items()
            if name not in served and now - since >= GRACE and shown.get(name) == "0"
        )
    )


def forget_patch(names: Iterable[str]) -> dict[str, Any]:
    """The merge patch of a node's status that removes resources."""
    gone = dict.fromkeys(names)
    return {"status": {"capacity": gone, "allocatable": gone}}


class OfferedNames:
    """Which resources this node's agents have offered, on disk.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file: KeptFile[dict[str, float | None]] = KeptFile(path, dict[str, float | None])
        self._ended = self._file.load() or {}

    @property
    def former(self) -> Mapping[str, float]:
        """Names that are not offered, with the time since when; seconds since 1970."""
        return {name: since for name, since in self._ended.items() if since is not None}

    def offered(self, names: Collection[str], now: float) -> None:
        """Says what is offered now; what was offered before and is not among it is former from now on.

        Raises:
            OSError: the file cannot be written.
        """
        ended = {name: now for name, since in self._ended.items() if since is None and name not in names}
        self._ended |= ended | dict.fromkeys(names)
        self._file.save(self._ended)

    def removed(self, names: Iterable[str], now: float) -> None:
        """Says that names were removed from the node; should they come back, it is after another while.

        Raises:
            OSError: the file cannot be written.
        """
        self._ended |= dict.fromkeys(names, now)
        self._file.save(self._ended)
