"""The claims that are prepared on this node, and the pods whose promises serve them, on disk.

Kubelet asks once for each claim, and not again after a restart of the agent or of the node. So the agent remembers what
it answered, and writes the CDI files anew at each start: the folder is empty after a reboot (kubernetes #141433).
Kubelet flushes its own note of a claim, so this file is flushed too: both are there after a crash, or both are not.

Which promise serves a claim is remembered beyond that, until the promise is gone: pods that share a claim may come one
after the other, and the promise has the first pod's UID.
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.settings import ServicePlan
from tessera.agent.inventory.sliceable_gpus import SlicePosition, parse_device_id
from tessera.api.names import PodUid
from tessera.kubelet.interfaces import PreparedDevice


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose devices containers may use.

    Attributes:
        namespace: of the claim.
        name: of the claim.
        devices: what kubelet was answered.
        positions: by device, or by device and place of a share, the id of its slice's position
            (:attr:`.SlicePosition.device_id`); in the order of ``devices``.
        daemon: the MPS daemon that serves its cards; ``None`` without one.
        shared: the daemon serves the shares of other claims too.
        admin: it takes nothing from others, so no promise serves it.
    """

    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    positions: Mapping[str, str]
    daemon: ServicePlan | None = None
    shared: bool = False
    admin: bool = False

    def slices(self) -> dict[str, SlicePosition]:
        """By device, the position of its slice."""
        return {device: parse_device_id(text) for device, text in self.positions.items()}


class _Notes(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file, each by the UID of a claim."""

    prepared: dict[str, PreparedClaim] = {}
    promises: dict[str, PodUid] = {}


class _NotesFile(StateFile[_Notes]):
    """The file; an invalid position in it, or a prepared claim that no promise serves, counts as damage."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _Notes)

    def check(self, value: _Notes) -> None:
        """Checks that every position can be parsed, and that every prepared claim has its promise.

        Raises:
            ValueError: one cannot, or has none.
        """
        for uid, claim in value.prepared.items():
            claim.slices()
            if uid not in value.promises and not claim.admin:
                raise ValueError(f"claim {uid} has no promise")


class PreparedClaims:
    """All prepared claims of this node, by UID.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        self._file = _NotesFile(path)
        self._notes = self._file.load() or _Notes()

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim with a UID; ``None`` if it is not prepared."""
        return self._notes.prepared.get(uid)

    def items(self) -> Sequence[tuple[str, PreparedClaim]]:
        """All of them with their UIDs."""
        return list(self._notes.prepared.items())

    def promise(self, uid: str) -> PodUid | None:
        """The pod whose promise serves a claim, or served it while it was prepared last."""
        return self._notes.promises.get(uid)

    def pods(self) -> set[PodUid]:
        """The pods whose promises serve claims."""
        return set(self._notes.promises.values())

    def serves(self, pod: PodUid) -> bool | None:
        """True if a claim is prepared that a pod's promise serves; ``None`` if it serves no claim."""
        claims = [uid for uid, each in self._notes.promises.items() if each == pod]
        return any(uid in self._notes.prepared for uid in claims) if claims else None

    def add(self, uid: str, claim: PreparedClaim, pod: PodUid | None) -> None:
        """Notes a claim that the promise to a pod serves; ``None`` if it needs none.

        Raises:
            OSError: the file cannot be written; the claim is not noted.
        """
        self._save(self._notes.prepared | {uid: claim}, self._notes.promises | ({} if pod is None else {uid: pod}))

    def remove(self, uid: str) -> None:
        """Notes that a claim is no longer prepared.

        Raises:
            OSError: the file cannot be written; the claim is still prepared.
        """
        if uid in self._notes.prepared:
            prepared = {key: claim for key, claim in self._notes.prepared.items() if key != uid}
            self._save(prepared, self._notes.promises)

    def forget(self, promised: Container[PodUid]) -> set[PodUid]:
        """Forgets the claims that are not prepared and whose promise is gone; returns the pods of these promises.

        Args:
            promised: the pods with a promise.

        Raises:
            OSError: the file cannot be written; nothing is forgotten.
        """
        notes = self._notes
        gone = {uid for uid, pod in notes.promises.items() if uid not in notes.prepared and pod not in promised}
        if gone:
            self._save(notes.prepared, {uid: pod for uid, pod in notes.promises.items() if uid not in gone})
        return {notes.promises[uid] for uid in gone}

    def _save(self, prepared: dict[str, PreparedClaim], promises: dict[str, PodUid]) -> None:
        notes = _Notes(prepared=prepared, promises=promises)
        self._file.save(notes, flush=True)
        self._notes = notes
