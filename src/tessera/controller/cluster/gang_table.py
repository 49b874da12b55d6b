"""Which pods belong to which gang, and which gangs have changed.

A pod that succeeded counts for its gang as long as its object exists: a Job whose pods end one after another is not
incomplete. The cluster's state does not keep it, so this table does. A failed pod does not count: its gang waits for
the pod that replaces it.

A PodGroup object states the size of a gang whose pods do not. Until it is known whether the cluster has such objects,
and where one of them is missing, the size is unknown (0), and the gang waits. In a cluster without the kind its pods
have no gang.
"""

from collections.abc import Sequence
from dataclasses import replace

from tessera.api.names import PodUid
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.pod_info import PodInfo

#: Most pods that are counted for one gang, those that succeeded included. About twice the largest size; pods beyond are
#: planned one by one.
GANG_PODS = 1_000


class GangTable:
    """The gangs of all pods.

    Attributes:
        known: by key of a gang its pods, True for one that succeeded; no dict is empty.
    """

    def __init__(self) -> None:
        #: By pod, its gang. The pods are those of ``known``.
        self._gangs: dict[PodUid, Gang] = {}
        self.known: dict[str, dict[PodUid, bool]] = {}
        #: Keys of gangs of which a pod or the size has changed; the next decision empties it.
        self.changed: set[str] = set()
        #: By key of a gang, the size that its PodGroup states.
        self._sizes: dict[str, int] = {}
        #: False once it is known that the cluster has no PodGroups.
        self._may_have_groups = True

    def observe(self, pod: PodInfo) -> None:
        """Takes in a pod as it is now; pods beyond the bound of a gang are taken as pods without one."""
        known = self._gangs.get(pod.uid)
        if known is not None and (pod.gang is None or pod.gang.key != known.key):
            self.drop(pod.uid)
        if pod.gang is None:
            return
        members = self.known.get(pod.gang.key, {})
        if pod.uid in members or len(members) < GANG_PODS:
            self.known.setdefault(pod.gang.key, members)[pod.uid] = pod.succeeded
            self._gangs[pod.uid] = pod.gang
            self.changed.add(pod.gang.key)

    def drop(self, uid: PodUid) -> None:
        """Forgets a pod that is gone; an unknown one is no error."""
        gang = self._gangs.pop(uid, None)
        if gang is not None:
            self.changed.add(gang.key)
            del self.known[gang.key][uid]
            if not self.known[gang.key]:
                del self.known[gang.key]

    def gang_of(self, uid: PodUid) -> Gang | None:
        """Returns the gang of a pod; None for a pod that starts by itself."""
        gang = self._gangs.get(uid)
        if gang is None or (gang.leads and len(self.known[gang.key]) == 1):
            return None
        if gang.size:
            return gang
        size = self._sizes.get(gang.key, 0 if self._may_have_groups else 1)
        return None if size == 1 else replace(gang, size=size)

    def put_group(self, key: str, size: int | None) -> None:
        """Takes in the size that a PodGroup states; None once it is gone."""
        if size is None:
            self._sizes.pop(key, None)
        else:
            self._sizes[key] = size
        self.changed.add(key)

    def note_groups(self, *, served: bool) -> None:
        """Notes whether the cluster has PodGroups, of which all have been listed."""
        if self._may_have_groups != served:
            self._may_have_groups = served
            self.changed |= {gang.key for gang in self._gangs.values() if not gang.size}

    def members(self, key: str) -> Sequence[PodUid]:
        """Returns the pods of a gang."""
        return tuple(self.known.get(key, ()))

    def has_succeeded(self, uid: PodUid) -> bool:
        """True if a pod of a gang has succeeded."""
        gang = self._gangs.get(uid)
        return gang is not None and self.known[gang.key][uid]
