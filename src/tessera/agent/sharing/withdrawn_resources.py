"""Corrects the Node's amounts where kubelet is late: removes former resources, and lowers what pods may still get.

Five minutes after a plugin has ended kubelet forgets its devices, and sets the resource to 0 on the node instead of
removing it (``pkg/kubelet/nodestatus/setters.go``). Readers of the node then see ``nvidia.com/gpu: 0`` beside
``nvidia.com/gpu.shared: 16`` for ever. Kubelet writes that 0 once, so after it the name can be removed for good. A
kubelet that was restarted counts its five minutes anew and may write the 0 again; then the name is removed again.

Only names that this agent has offered itself, on either side, are ever removed. They are kept in a file, since the five
minutes may be longer than the agent's life.

Kubelet writes a changed amount up to 10 s after it has read the list. Where a pod is about to leave a card that no
other pod may get, the agent lowers the allocatable amount itself, so that kube-scheduler sends no pod in between.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tessera.agent.base.state_file import StateFile
from tessera.clock import Clock
from tessera.kube.client.errors import ApiError
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node

_log = logging.getLogger(__name__)

#: Merges a patch into the Node's status.
PatchStatus = Callable[[Mapping[str, Any]], Awaitable[object]]

#: Seconds after which a resource without a plugin may be removed: kubelet's grace period of 5 min
#: (``endpointStopGracePeriod``) and some rounds of its node status, each 10 s.
GRACE = 360.0
#: Seconds before a removal that failed is tried again.
RETRY = 30.0


def stale_resources(node: Node, former: Mapping[str, float], served: Collection[str], now: float) -> tuple[str, ...]:
    """Returns the resources to be removed from a node's status.

    Args:
        node: the Node as last seen.
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


def removal_patch(names: Iterable[str]) -> dict[str, Any]:
    """Returns the merge patch of a node's status that removes resources."""
    gone = dict.fromkeys(names)
    return {"status": {"capacity": gone, "allocatable": gone}}


class AdvertisedNames:
    """The resources that this node's agents have offered, on disk; removes the former ones from the node.

    Args:
        path: the file.
        node: the Node as last seen; ``None`` while there is none.
        patch_status: merges a patch into the Node's status; raises ApiError or ConnectionError.
        clock: the time.
    """

    def __init__(self, path: Path, node: Callable[[], Node | None], patch_status: PatchStatus, clock: Clock) -> None:
        self._file: StateFile[dict[str, float | None]] = StateFile(path, dict[str, float | None])
        #: By name: time since which it is no longer offered; ``None`` while it is offered.
        self._ended = self._file.load() or {}
        self._node = node
        self._patch_status = patch_status
        self._clock = clock
        self._next = 0.0

    def allocatable(self) -> Mapping[str, str] | None:
        """The allocatable resources of the Node as last seen; ``None`` while there is no Node."""
        node = self._node()
        return None if node is None else node.status.allocatable

    @property
    def known_resources(self) -> frozenset[str]:
        """Every resource that was ever offered and may still be on the node."""
        return frozenset(self._ended)

    def set_advertised(self, names: Collection[str]) -> None:
        """Sets the present resources; earlier ones that are not among them are former from now on."""
        now = self._clock.now()
        ended = {name: now for name, since in self._ended.items() if since is None and name not in names}
        self._ended |= ended | dict.fromkeys(names)
        self._save()

    async def remove_stale(self, served: Collection[str]) -> float | None:
        """Removes the former resources whose time has come.

        Args:
            served: resources that a plugin serves now, on either side of the node.

        Returns:
            Seconds until the next removal may be due; ``None`` if there is nothing to wait for.
        """
        node, now = self._node(), self._clock.now()
        if node is None:
            return None
        former = {name: since for name, since in self._ended.items() if since is not None}
        names = stale_resources(node, former, served, now)
        if names and now >= self._next:
            self._next = now + RETRY
            try:
                await self._patch_status(removal_patch(names))
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("%s cannot be removed from the node, again in %.0f s: %s", ", ".join(names), RETRY, error)
                return RETRY
            # If the name comes back, that is after another grace period.
            self._ended |= dict.fromkeys(names, now)
            self._save()
        shown = [since for name, since in former.items() if name not in served and name in node.status.capacity]
        return min((max(RETRY, since + GRACE - now) for since in shown), default=None)

    async def lower_allocatable(self, counts: Mapping[str, int]) -> None:
        """Lowers allocatable amounts to these counts; kubelet does it seconds later, so a failure is only logged."""
        shown = self.allocatable() or {}
        lower = {name: str(count) for name, count in counts.items() if count_or_zero(shown.get(name, "0")) > count}
        if not lower:
            return
        try:
            await self._patch_status({"status": {"allocatable": lower}})
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("%s are not lowered before kubelet does it: %s", ", ".join(sorted(lower)), error)

    def _save(self) -> None:
        try:
            self._file.save(self._ended)
        except OSError as error:
            _log.warning("names of resources are not saved; former ones may stay on the node with 0: %s", error)
