"""The audit log: counters of requests and answers, and the latest requests in order.

Tests and benchmarks read it (writes per pod, verbs per service account). No decision depends on it.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import msgspec

_READS = frozenset({"get", "list", "watch"})


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. ``resource`` is qualified (``deployments.apps``); ``path`` is set only if it names no resource."""

    at: float
    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    path: str = ""
    dry_run: bool = False

    @property
    def is_write(self) -> bool:
        """True if the request may have changed an object."""
        stores = self.subresource != "token" and not self.resource.partition(".")[0].endswith("reviews")
        return stores and self.verb not in _READS and not self.path and not self.dry_run


class AuditLog:
    """Counters of all requests, and the latest ``keep`` requests one by one."""

    def __init__(self, keep: int = 200_000) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=keep)
        #: Requests by (user, verb, qualified resource, subresource).
        self.verbs: Counter[tuple[str, str, str, str]] = Counter()
        #: Requests by HTTP status.
        self.codes: Counter[int] = Counter()
        #: Annotations of audit events that admission policies have written, oldest first.
        self.annotations: deque[Mapping[str, str]] = deque(maxlen=keep)

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Adds annotations of one request."""
        self.annotations.append(annotations)

    def record(self, entry: AuditEntry) -> None:
        """Records a request; a watch is recorded when it starts."""
        self._entries.append(entry)
        self.verbs[entry.user, entry.verb, entry.resource, entry.subresource] += 1
        self.codes[entry.code] += 1

    def __iter__(self) -> Iterator[AuditEntry]:
        return iter(self._entries)

    def writes(
        self, *, user: str | None = None, resource: str | None = None, name: str | None = None
    ) -> list[AuditEntry]:
        """Writes that the server accepted, oldest first."""
        return [
            e
            for e in self._entries
            if e.is_write
            and e.code < 300
            and user in {None, e.user}
            and resource in {None, e.resource}
            and name in {None, e.name}
        ]

    def clear(self) -> None:
        """Removes all entries and counters, so that a test counts from here on."""
        self._entries.clear()
        self.verbs.clear()
        self.codes.clear()
        self.annotations.clear()
