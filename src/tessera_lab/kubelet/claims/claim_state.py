"""``dra_manager_state``: the claims that kubelet has prepared, kept over a restart of kubelet and of the node.

The file has kubelet's name and what it must keep; its form is the lab's own.
"""

from pathlib import Path
from typing import Protocol

import msgspec

from tessera.kubelet.interfaces import ClaimRef, PreparedDevice

FILE_NAME = "dra_manager_state"


class PreparedClaim(msgspec.Struct):
    """A claim on this node.

    Attributes:
        claim: which.
        drivers: the devices of each driver; empty before it has prepared them.
        pods: UIDs of the pods that use it.
        prepared: all drivers have prepared it; no driver is called for it again before it is unprepared.
    """

    claim: ClaimRef
    drivers: dict[str, tuple[PreparedDevice, ...]]
    pods: set[str] = set()
    prepared: bool = False


class ClaimState(msgspec.Struct):
    """All claims of a node by ``namespace/name``, and the drivers that have been registered on it."""

    claims: dict[str, PreparedClaim] = {}
    drivers: set[str] = set()


class ClaimCheckpoint(Protocol):
    """Storage of the state."""

    def save(self, state: ClaimState) -> None:
        """Saves the present state."""
        ...

    def load(self) -> ClaimState:
        """Returns the state as saved last; an empty one if there is none."""
        ...


class MemoryClaimCheckpoint:
    """A checkpoint for nodes without folders."""

    def __init__(self) -> None:
        self._saved = b"{}"

    def save(self, state: ClaimState) -> None:
        """Keeps the state."""
        self._saved = msgspec.json.encode(state)

    def load(self) -> ClaimState:
        """Returns a copy of it."""
        return msgspec.json.decode(self._saved, type=ClaimState)


class FileClaimCheckpoint:
    """The file in kubelet's folder, replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def save(self, state: ClaimState) -> None:
        """Writes the file."""
        scratch = self._path.with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(state))
        scratch.replace(self._path)

    def load(self) -> ClaimState:
        """Reads the file."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ClaimState)
        except FileNotFoundError:
            return ClaimState()
