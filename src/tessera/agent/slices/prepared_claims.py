"""The claims that are prepared on this node, on disk.

Kubelet asks once for each claim, and not again after a restart of the agent or of the node. So the agent remembers what
it answered, and writes the CDI files anew at each start: the folder is empty after a reboot (kubernetes #141433).
Kubelet flushes its own note of a claim, so this file is flushed too: both are there after a crash, or both are not.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.state_file import StateFile
from tessera.agent.inventory.sliceable_gpus import SlicePosition, parse_device_id
from tessera.kubelet.interfaces import PreparedDevice


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose devices containers may use.

    Attributes:
        namespace: of the claim.
        name: of the claim.
        devices: what kubelet was answered.
        positions: by device, the id of its slice's position (:attr:`.SlicePosition.device_id`).
    """

    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    positions: Mapping[str, str]

    def slices(self) -> dict[str, SlicePosition]:
        """By device, the position of its slice."""
        return {device: parse_device_id(text) for device, text in self.positions.items()}


class _PreparedFile(StateFile[dict[str, PreparedClaim]]):
    """The file; an invalid position in it counts as damage."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, dict[str, PreparedClaim])

    def check(self, value: dict[str, PreparedClaim]) -> None:
        """Checks that every position can be parsed.

        Raises:
            ValueError: a position cannot be parsed.
        """
        for claim in value.values():
            claim.slices()


class PreparedClaims:
    """All prepared claims of this node, by UID.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        self._file = _PreparedFile(path)
        self._claims = self._file.load() or {}

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim with a UID; ``None`` if it is not prepared."""
        return self._claims.get(uid)

    def items(self) -> Sequence[tuple[str, PreparedClaim]]:
        """All of them with their UIDs."""
        return list(self._claims.items())

    def add(self, uid: str, claim: PreparedClaim) -> None:
        """Notes a claim.

        Raises:
            OSError: the file cannot be written; the claim is not noted.
        """
        self._save(self._claims | {uid: claim})

    def remove(self, uid: str) -> None:
        """Forgets a claim, if it is noted.

        Raises:
            OSError: the file cannot be written; the claim is still noted.
        """
        if uid in self._claims:
            self._save({key: claim for key, claim in self._claims.items() if key != uid})

    def _save(self, claims: dict[str, PreparedClaim]) -> None:
        self._file.save(claims, flush=True)
        self._claims = claims
