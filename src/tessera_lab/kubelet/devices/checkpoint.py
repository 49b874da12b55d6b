"""Files that keep what kubelet's managers know over its restart: devices and claims.

``kubelet_internal_checkpoint`` keeps the device ledger. It has kubelet's shape (``Data.PodDeviceEntries``,
``Data.RegisteredDevices``, ``Checksum``). Two things differ: the checksum is CRC-32 of ``Data``, and ``AllocResp``
holds the answer as base64 of JSON instead of protobuf. The file also has pod names, for its readers.

``dra_manager_state`` keeps the prepared claims, also over a restart of the node. It has kubelet's name and what it must
keep; its form is the lab's own.
"""

import base64
import zlib
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tessera.kubelet.interfaces import ClaimRef, ContainerAllocateResponse, PreparedDevice
from tessera_lab.kubelet.devices.device_ledger import DeviceHolding, DeviceLedger, PodUid

FILE_NAME = "kubelet_internal_checkpoint"
CLAIMS_FILE = "dra_manager_state"


class CheckpointError(Exception):
    """The checkpoint cannot be read; like kubelet, the node does not start with it."""


class Checkpoint(Protocol):
    """Storage of a ledger that survives a restart."""

    def save(self, ledger: DeviceLedger) -> None:
        """Saves the ledger's present state."""
        ...

    def load(self) -> DeviceLedger | None:
        """Returns the ledger as saved last, or None.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        ...


class MemoryCheckpoint:
    """A checkpoint for nodes without a directory. A restart then starts from the ledger itself."""

    def __init__(self) -> None:
        self._ledger: DeviceLedger | None = None

    def save(self, ledger: DeviceLedger) -> None:
        """Keeps a reference to the ledger."""
        self._ledger = ledger

    def load(self) -> DeviceLedger | None:
        """Returns the ledger with holders and resource names only, as a file would give it."""
        return self._ledger.after_restart() if self._ledger else None


class FileCheckpoint:
    """The checkpoint file in kubelet's device-plugin folder, replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def save(self, ledger: DeviceLedger) -> None:
        """Writes the file."""
        data = _data(ledger)
        text = msgspec.json.encode({"Data": data, "Checksum": _checksum(data)})
        scratch = self._path.with_suffix(".new")
        scratch.write_bytes(text)
        scratch.replace(self._path)

    def load(self) -> DeviceLedger | None:
        """Reads the file; None if there is none."""
        try:
            content = msgspec.json.decode(self._path.read_bytes())
            if _checksum(content["Data"]) != content["Checksum"]:
                raise CheckpointError(f"{self._path}: checksum does not match; delete the file to start without it")
            return _ledger(content["Data"])
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OSError) as error:
            raise CheckpointError(f"{self._path}: {error}; delete the file to start without it") from error


def _data(ledger: DeviceLedger) -> dict[str, Any]:
    entries = [
        {
            "PodUID": pod.uid,
            "PodNamespace": pod.namespace,
            "PodName": pod.name,
            "ContainerName": holding.container,
            "ResourceName": holding.resource,
            "DeviceIDs": {"-1": list(holding.device_ids)},
            "AllocResp": base64.b64encode(msgspec.json.encode(holding.allocation)).decode(),
        }
        for pod in ledger.pods()
        for holding in pod.holdings
    ]
    registered = {name: list(ids) for name, ids in ledger.registered_resources().items()}
    return {"PodDeviceEntries": entries, "RegisteredDevices": registered}


def _checksum(data: Any) -> int:
    return zlib.crc32(msgspec.json.encode(data))


def _ledger(data: dict[str, Any]) -> DeviceLedger:
    ledger = DeviceLedger.restore((), data["RegisteredDevices"])
    for entry in data["PodDeviceEntries"]:
        holding = DeviceHolding(
            container=entry["ContainerName"],
            resource=entry["ResourceName"],
            device_ids=tuple(each for ids in entry["DeviceIDs"].values() for each in ids),
            allocation=msgspec.json.decode(base64.b64decode(entry["AllocResp"]), type=ContainerAllocateResponse),
        )
        ledger.hold(PodUid(entry["PodUID"]), entry["PodNamespace"], entry["PodName"], holding)
    return ledger


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
        self._path = folder / CLAIMS_FILE

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
