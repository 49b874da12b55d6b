"""Events have two faces, ``v1`` and ``events.k8s.io/v1``, over one storage: the field names differ. Pure."""

from tessera_lab.apiserver.interfaces import GroupResource, Obj

CORE_EVENTS = GroupResource("", "events")
#: Field names in ``events.k8s.io/v1`` and in ``v1``.
_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: new for new, core in _NAMES.items()}


def to_core_event(obj: Obj) -> Obj:
    """An ``events.k8s.io/v1`` Event as ``v1`` keeps it."""
    return {_NAMES.get(key, key): value for key, value in obj.items()}


def to_new_event(obj: Obj) -> Obj:
    """A ``v1`` Event as ``events.k8s.io/v1`` shows it."""
    return {_BACK.get(key, key): value for key, value in obj.items()}
