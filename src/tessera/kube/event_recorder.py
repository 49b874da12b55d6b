"""Records Kubernetes Events without delaying the caller.

:meth:`EventRecorder.record` puts a note into a bounded table; one task sends the notes. A note that repeats raises the
count of its event by merge patch instead of creating another, which ``kubectl describe`` shows as ``x5 over 2m``. The
recorder drops and counts notes that do not fit or cannot be sent: events help people and carry no state.

They are core/v1 Events: every API server takes them, and kubectl aggregates them with all others.
"""

import asyncio
import logging
import random
from typing import Any, Literal, NamedTuple

import msgspec

from tessera.clock import Clock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, NotFound, TooManyRequests
from tessera.kube.resources import EVENTS, ObjectReference, Uid
from tessera.kube.resources.meta import Resource
from tessera.kube.retries import Backoff, OutageLog
from tessera.text import one_line

#: Most events that a process remembers to count repeats. Client-go remembers as many; the oldest is forgotten, and a
#: repeat of it becomes a new event.
REMEMBERED_EVENTS = 4_096

_log = logging.getLogger(__name__)

#: Longest note that events.k8s.io takes (NoteLengthLimit), bytes.
NOTE_LIMIT = 1024

#: How long a repeat raises the count of the old event, seconds; client-go's aggregation interval.
_WINDOW = 600.0


#: Times a note is sent when the API is in trouble.
_TRIES = 3


class _EventKey(NamedTuple):
    """The fields in which two occurrences of one event agree."""

    reference: ObjectReference
    type: str
    reason: str
    action: str
    note: str


class _Occurrences(msgspec.Struct):
    """Unsent occurrences: their number, and the first and last time, seconds since 1970."""

    number: int
    first: float
    last: float


class _SentEvent(msgspec.Struct, frozen=True):
    """An event on the server."""

    name: str
    count: int
    last: float


class EventRecorder:
    """Records events of one component.

    Args:
        client: the client that writes.
        component: shown as the source, e.g. ``tessera-controller``.
        instance: which process of it, e.g. the pod or node name.
        clock: gives the times of events.
        rng: for names and jitter.
        capacity: different notes that may wait to be sent.

    Attributes:
        component: shown as the source.
        dropped: notes that found no room or could not be sent.
        sent: writes that the server took.
    """

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        instance: str = "",
        clock: Clock,
        rng: random.Random,
        capacity: int = 1000,
    ) -> None:
        self.dropped = 0
        self.sent = 0
        self._client = client
        self.component = component
        self._instance = instance
        self._clock = clock
        self._rng = rng
        self._capacity = capacity
        #: Unsent notes, at most ``capacity``.
        self._waiting: dict[_EventKey, _Occurrences] = {}
        #: Events on the server whose count a repeat may raise, the last sent at the end.
        self._known: dict[_EventKey, _SentEvent] = {}
        self._wake = asyncio.Event()
        self._outages = OutageLog(_log, "Events", clock)

    def record(
        self,
        about: ObjectReference,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",  # noqa: A002 - the field's own name
        action: str = "",
    ) -> None:
        """Notes an event; returns at once.

        Args:
            about: the object, see :func:`make_reference`.
            reason: short, CamelCase, for machines.
            note: a sentence for people; made one printable line and cut to 1024 bytes.
            type: ``Warning`` if a person should act.
            action: the action that followed.
        """
        now = self._clock.now()
        same = _EventKey(about, type, reason, action, _trim_note(note))
        waiting = self._waiting.get(same)
        if waiting is not None:
            waiting.number += 1
            waiting.last = now
        elif len(self._waiting) < self._capacity:
            self._waiting[same] = _Occurrences(1, now, now)
            self._wake.set()
        else:
            self.dropped += 1

    async def send_once(
        self,
        about: ObjectReference,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's own name
        key: str,
    ) -> None:
        """Sends an event now, unless the server has one with the same key; for events that a restart must not repeat.

        Args:
            about: the object, see :func:`make_reference`.
            reason: short, CamelCase, for machines.
            note: a sentence for people; made one printable line and cut to 1024 bytes.
            type: ``Warning`` if a person should act.
            key: names this occurrence among all events about the object: letters and digits.

        Raises:
            ApiError: the server refused it.
            ConnectionError: the server did not answer.
        """
        now = self._clock.now()
        event = _EventKey(about, type, reason, "", _trim_note(note))
        body = self._body(event, f"{about.name[:236]}.{key}", _Occurrences(1, now, now))
        try:
            await self._client.create(EVENTS, body, _event_namespace(event))
        except AlreadyExists:
            return
        self.sent += 1

    @property
    def waiting(self) -> int:
        """Different notes not yet sent."""
        return len(self._waiting)

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            await self._wake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Sends all waiting notes; for a clean stop, under a timeout."""
        while self._waiting:
            note = next(iter(self._waiting))
            await self._deliver(note, self._waiting.pop(note))
        self._wake.clear()

    async def _deliver(self, note: _EventKey, count: _Occurrences) -> None:
        backoff = Backoff(self._rng)
        while True:
            try:
                await self._send(note, count)
            except (TooManyRequests, ConnectionError, TimeoutError) as error:
                if backoff.failures + 1 >= _TRIES:
                    return self._drop(note, error)
                await self._clock.sleep(backoff.next())
            except ApiError as error:
                return self._drop(note, error)
            else:
                self.sent += 1
                self._outages.note_answer()
                return None

    async def _send(self, note: _EventKey, count: _Occurrences) -> None:
        known = self._known.pop(note, None)
        if known is not None and count.last - known.last < _WINDOW:
            total = known.count + count.number
            patch = {"count": total, "lastTimestamp": rfc3339(count.last)}
            try:
                await self._client.merge_patch(EVENTS, known.name, patch, _event_namespace(note))
            except NotFound:
                pass  # its time to live is over: make a new one
            else:
                self._remember(note, _SentEvent(known.name, total, count.last))
                return
        name = self._new_name(note)
        await self._client.create(EVENTS, self._body(note, name, count), _event_namespace(note))
        self._remember(note, _SentEvent(name, count.number, count.last))

    def _body(self, note: _EventKey, name: str, count: _Occurrences) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "namespace": _event_namespace(note)},
            "involvedObject": msgspec.to_builtins(note.reference),
            "type": note.type,
            "reason": note.reason,
            "message": note.note,
            "action": note.action,
            "count": count.number,
            "firstTimestamp": rfc3339(count.first),
            "lastTimestamp": rfc3339(count.last),
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "reportingInstance": self._instance,
        }

    def _new_name(self, note: _EventKey) -> str:
        # Names have at most 253 characters; the object's name is the part that people search for.
        return f"{note.reference.name[:236]}.{self._rng.getrandbits(64):016x}"

    def _remember(self, note: _EventKey, sent: _SentEvent) -> None:
        self._known[note] = sent
        if len(self._known) > REMEMBERED_EVENTS:
            del self._known[next(iter(self._known))]

    def _drop(self, note: _EventKey, error: Exception) -> None:
        self.dropped += 1
        if not self._outages.note_failure(error):
            _log.warning(
                "event %s about %s %s is dropped: %s", note.reason, note.reference.kind, note.reference.name, error
            )


def make_reference(resource: Resource[Any], name: str, namespace: str = "", uid: str = "") -> ObjectReference:
    """Names an object in an event."""
    return ObjectReference(
        api_version=resource.api_version, kind=resource.kind, name=name, namespace=namespace, uid=Uid(uid)
    )


def _event_namespace(note: _EventKey) -> str:
    """The namespace of the event: that of its object, or in ``default`` where the object has no namespace."""
    return note.reference.namespace or "default"


def _trim_note(note: str) -> str:
    """Returns one printable line: a note may repeat foreign text, and kubectl prints it unchanged."""
    encoded = one_line(note, NOTE_LIMIT).encode()
    return encoded.decode() if len(encoded) <= NOTE_LIMIT else encoded[: NOTE_LIMIT - 3].decode(errors="ignore") + "..."
