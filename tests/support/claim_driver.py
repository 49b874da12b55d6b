"""A tiny driver of ResourceClaims: it writes a CDI file for each claim and remembers every call."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimRef, PluginError, PreparedDevice

#: Returns the devices of a claim, as ``(request, pool, device)``.
Allocated = Callable[[ClaimRef], Awaitable[Sequence[tuple[str, str, str]]]]


class ClaimDriver:
    """Implements :class:`tessera.kubelet.interfaces.ClaimPlugin`.

    Args:
        name: the driver's name.
        cdi: the node's CDI folder.
        allocated: reads a claim's allocation.

    Attributes:
        calls: every call, as ``prepare`` or ``unprepare`` and the claim's name.
        refusal: why calls fail; empty if they do not.
        gate: calls wait for it.
        health: the lists that are sent to kubelet.
    """

    def __init__(self, name: str, cdi: Path, allocated: Allocated) -> None:
        self.driver_name = name
        self._cdi = cdi
        self._allocated = allocated
        self.calls: list[tuple[str, str]] = []
        self.refusal = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.health: asyncio.Queue[Sequence[ClaimDeviceHealth]] = asyncio.Queue()

    def file(self, claim: ClaimRef) -> Path:
        """The claim's CDI file."""
        return self._cdi / f"{self.driver_name}-{claim.uid}.json"

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """Writes the claim's CDI file."""
        await self._note("prepare", claim)
        devices = await self._allocated(claim)
        kind = f"k8s.{self.driver_name}/claim"
        edits = [
            {"name": f"{claim.uid}-{device}", "containerEdits": {"env": [f"DEVICE_{request.upper()}={device}"]}}
            for request, _, device in devices
        ]
        self.file(claim).write_text(json.dumps({"cdiVersion": "0.8.0", "kind": kind, "devices": edits}))
        return [
            PreparedDevice(requests=(request,), pool=pool, device=device, cdi_devices=(f"{kind}={claim.uid}-{device}",))
            for request, pool, device in devices
        ]

    async def unprepare(self, claim: ClaimRef) -> None:
        """Removes the file."""
        await self._note("unprepare", claim)
        self.file(claim).unlink(missing_ok=True)

    async def _note(self, call: str, claim: ClaimRef) -> None:
        self.calls.append((call, claim.name))
        await self.gate.wait()
        if self.refusal:
            raise PluginError(self.refusal)

    async def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """Yields what a test puts into :attr:`health`."""
        while True:
            yield await self.health.get()
