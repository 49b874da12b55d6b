"""Elects one leader among several processes with a Lease; no process acts after its lease may have run out.

Hand-written because kopf elects by a custom object of its own, and the asynchronous clients have no election.

Rules:

1. The lease changes hands by compare-and-swap only: every write carries the resourceVersion that was read.
2. The lease of another process has run out when this process has not seen it change for its duration, by the monotonic
   clock. Times written by others are never compared with our clock, so skewed clocks do no harm.
3. Our lease counts from the moment *before* the last acknowledged write was sent; a write whose answer was lost is
   acknowledged when a read shows it. The leader's task is cancelled and awaited when ``deadline`` has passed since
   then; ``duration - deadline`` is the time it has to stop before another may begin. That needs no answer from the
   server, so a hanging API makes no difference.
4. A renewal without an answer goes on beside the next one: the server may be slow, or the connection dead.
5. A deleted Lease may have a holder that acts until its next renewal. A process that has seen the Lease before waits
   for its own duration before it creates it again; only a process that never saw it creates it at once.
6. Any process may have written the content of a Lease. The log names other holders and the remedy, durations have a
limit (:data:`~tessera.limits.LEASE_DURATION`), and our own numbers stay within the API's limits.
7. A clean stop first ends the leader's task, still renewing, and then gives the lease back, so that another takes
   over at once.

A :class:`KubeRuntime` is what the parts of the leader get for its term.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tessera.clock import Clock, rfc3339_micro
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, BrokenAnswer, Conflict, NotFound
from tessera.kube.resources import LEASES, Lease, LeaseSpec
from tessera.limits import FACT_SHOWN, LEASE_DURATION
from tessera.replay.recorder import Recorders
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Errors of a request that a later try may not meet.
_REQUEST_ERRORS = (ApiError, ConnectionError, TimeoutError)

#: Tries of a renewal without a pause while others change the Lease otherwise.
_CONFLICT_RETRIES = 5

#: The largest leaseTransitions that the API server accepts, an int32.
_TRANSITIONS = range(2**31)


class LeaseTiming(msgspec.Struct, frozen=True):
    """Seconds. Defaults are client-go's for kube-controller-manager and kube-scheduler, but for renewals that succeed.

    client-go renews every ``retry`` seconds, 30 times a minute, also while every renewal succeeds. Here the pause is
    longer, for fewer writes, and still short enough for three tries before ``deadline``.

    Attributes:
        duration: how long other processes wait for a change of the lease; whole seconds, as the API stores it.
        deadline: how long the leader acts after it sent a renewal that was acknowledged.
        retry: pause between tries, jittered by a fifth.
        renew: pause after a renewal that succeeded, jittered by a fifth.
    """

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0
    renew: float = 4.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.deadline < self.duration:
            raise ValueError(f"lease timing {self}: 0 < retry < deadline < duration must hold")
        if not 0 < 1.2 * (self.renew + 2 * self.retry) <= self.deadline:
            raise ValueError(f"lease timing {self}: renew and two retries, jittered, must come before deadline")


class LeaderElector:
    """Takes part in the election for one lease.

    Args:
        client: the client that writes.
        namespace: of the lease.
        name: of the lease.
        identity: must differ between any two processes, and between two runs of one; pod name and a random part.
        clock: its monotonic time decides.
        rng: for jitter.
        timing: see :class:`LeaseTiming`.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        rng: random.Random,
        timing: LeaseTiming | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._label = f"Lease {namespace}/{name}"
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._timing = timing or LeaseTiming()
        # All times below are monotonic.
        #: We lead before this time: ``deadline`` after the last acknowledged write was sent (rule 3). Never later.
        self._held_until = float("-inf")
        #: resourceVersion of the Lease as last read or written; empty if this process has not seen it, or saw its
        #: deletion while leading (then nobody else can lead, and it may be created at once).
        self._version = ""
        #: renewTime of writes without an answer, and when each was sent. A later answer or claim empties it.
        self._unacknowledged: dict[str, float] = {}
        #: The content of the Lease at ``_version``.
        self._spec = LeaseSpec()
        #: When this process first saw ``_spec``; the holder's duration counts from here (rule 2).
        self._unchanged_since = float("-inf")
        #: When this process first saw that the Lease is missing; infinite while it exists (rule 5).
        self._missing_since = float("inf")

    @property
    def is_leader(self) -> bool:
        """True if we may act at this very moment. Cheap: call it before each write."""
        return self._clock.monotonic() < self._held_until

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``lead()`` whenever we are the leader, until it returns or raises by itself, or until cancelled.

        When the lease is lost, ``lead()`` is cancelled and awaited, and the next election begins.
        """
        while True:
            await self._acquire()
            if not self.is_leader:
                continue  # the answer came so late that the granted lease may have expired
            _log.info("%s: this process, %s, leads now", self._label, self._identity)
            if await self._lead(lead):
                return
            _log.warning("%s: this process, %s, leads no more", self._label, self._identity)

    async def _lead(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Runs one term of leadership; returns True if it ended because ``lead()`` did."""
        work = asyncio.create_task(lead())
        renewals = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewals}, return_when=asyncio.FIRST_COMPLETED)
            finished = work.done()
        finally:
            await _cancel_and_wait(work)
            await _cancel_and_wait(renewals)
            await self._release()
        if not finished:
            return False
        work.result()
        return True

    # Getting it

    async def _acquire(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timing.deadline):
                    if await self._try_to_acquire():
                        return
            except _REQUEST_ERRORS as error:
                self._log_error(error)
            await self._clock.sleep(self._pause())

    async def _try_to_acquire(self) -> bool:
        try:
            self._observe(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            return self._may_create() and await self._create()
        if self._is_taken():
            return False
        self._unacknowledged.clear()  # unacknowledged writes have been read by now, or never will be
        try:
            await self._write(self._claim())
        except Conflict:
            return False
        return True

    async def _create(self) -> bool:
        sent = self._clock.monotonic()
        body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": self._claim()}
        try:
            lease = await self._client.create(LEASES, body, self._namespace)
        except AlreadyExists:
            return False
        self._acknowledge(lease, sent)
        return True

    def _may_create(self) -> bool:
        """True if no other leader can still act under a Lease that was deleted."""
        if not self._version:
            return True
        now = self._clock.monotonic()
        self._missing_since = min(self._missing_since, now)
        return now >= self._missing_since + self._timing.duration

    def _is_taken(self) -> bool:
        holder = self._spec.holder_identity
        if not holder or holder == self._identity:
            return False
        duration = self._spec.lease_duration_seconds or 0
        waited = min(duration, LEASE_DURATION) if duration > 0 else self._timing.duration
        return self._clock.monotonic() < self._unchanged_since + waited

    # Keeping it

    async def _renew_until_lost(self) -> None:
        try:
            while True:
                async with asyncio.timeout(self._held_until - self._clock.monotonic()):
                    await self._clock.sleep(self._seconds_until_renewal())
                    await self._renew()
        except (_LostError, TimeoutError) as error:
            _log.warning("%s: %s", self._label, str(error) or "not renewed in time")
            self._held_until = float("-inf")

    async def _renew(self) -> None:
        """Tries until one try is acknowledged."""
        tries: set[asyncio.Task[bool]] = set()
        try:
            while True:
                tries.add(asyncio.create_task(self._try_to_renew()))
                done, tries = await asyncio.wait(tries, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED)
                if True in [each.result() for each in done]:
                    return
                if done:
                    await self._clock.sleep(self._pause())
        finally:
            for each in tries:
                await _cancel_and_wait(each)

    async def _try_to_renew(self) -> bool:
        """One try; ``False`` if it failed and another makes sense."""
        for _ in range(_CONFLICT_RETRIES):
            try:
                await self._write({"renewTime": self._now()})
            except NotFound as error:
                self._version = ""  # so no other process has taken the lease meanwhile
                raise _LostError("it was deleted") from error
            except Conflict:
                if await self._confirm_own_write():
                    return True
                continue  # others changed something else: at once again, before they do it once more
            except _REQUEST_ERRORS as error:
                self._log_error(error)
                return False
            return True
        return False

    async def _confirm_own_write(self) -> bool:
        """After a conflict, returns True if the lease has our write whose answer was lost; that write renewed it."""
        try:
            self._observe(await self._client.get(LEASES, self._name, self._namespace))
        except _REQUEST_ERRORS as error:
            self._log_error(error)
            return False
        if self._spec.holder_identity != self._identity:
            raise _LostError(f"{one_line(self._spec.holder_identity or 'nobody')} holds it")
        sent = self._unacknowledged.get(self._spec.renew_time or "")
        if sent is None:
            return False
        self._held_until = max(self._held_until, sent + self._timing.deadline)
        return True

    async def _release(self) -> None:
        if not self.is_leader:
            return
        left = self._held_until - self._clock.monotonic()
        self._held_until = float("-inf")
        try:
            async with asyncio.timeout(left):
                # A duration of 1 s, because the API does not take 0; an empty holder counts as free anyway.
                await self._write(
                    {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}, hold=False
                )
        except _REQUEST_ERRORS as error:
            _log.info("%s is left to run out: %s", self._label, error)

    # Writing

    async def _write(self, spec: dict[str, Any], *, hold: bool = True) -> None:
        sent = self._clock.monotonic()
        if hold:
            self._unacknowledged[spec["renewTime"]] = sent
        lease = await self._client.merge_patch(
            LEASES, self._name, {"spec": spec}, self._namespace, resource_version=self._version
        )
        self._acknowledge(lease, sent if hold else float("-inf"))

    def _claim(self) -> dict[str, Any]:
        is_holder = self._spec.holder_identity == self._identity
        now = self._now()
        transitions = (self._spec.lease_transitions or 0) + (0 if is_holder or not self._version else 1)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.duration,
            "acquireTime": (self._spec.acquire_time if is_holder else None) or now,
            "renewTime": now,
            "leaseTransitions": transitions if transitions in _TRANSITIONS else 0,
        }

    def _acknowledge(self, lease: Lease, sent: float) -> None:
        self._observe(lease)
        self._unacknowledged.clear()
        self._held_until = sent + self._timing.deadline

    def _observe(self, lease: Lease) -> None:
        self._version = lease.metadata.resource_version
        self._missing_since = float("inf")
        if lease.spec != self._spec:
            before, self._spec = self._spec, lease.spec
            self._unchanged_since = self._clock.monotonic()
            self._log_other_holder(before)

    def _log_other_holder(self, before: LeaseSpec) -> None:
        """Logs another holder, and a duration beyond the limit, when they change."""
        holder, duration = self._spec.holder_identity, self._spec.lease_duration_seconds
        unchanged = (holder, duration) == (before.holder_identity, before.lease_duration_seconds)
        if not holder or holder == self._identity or unchanged:
            return
        wait = "this process waits; if no such process is there, delete the Lease"
        _log.info('%s: held by "%s"; %s', self._label, one_line(holder), wait)
        if duration is not None and duration > LEASE_DURATION:
            rule = f"a process waits for {LEASE_DURATION}"
            _log.warning("%s: spec.leaseDurationSeconds is %d, and %s", self._label, duration, rule)

    def _log_error(self, error: Exception) -> None:
        broken = isinstance(error, BrokenAnswer)
        hint = f"; if this lasts, delete the {self._label}, and a new one is made" if broken else ""
        _log.info("%s: %s%s", self._label, one_line(str(error) or "no answer in time", FACT_SHOWN), hint)

    def _pause(self) -> float:
        return self._timing.retry * self._rng.uniform(0.8, 1.2)

    def _seconds_until_renewal(self) -> float:
        """Counted from the time at which the last renewal was sent, so that a late answer does not delay the next."""
        since = self._clock.monotonic() - (self._held_until - self._timing.deadline)
        return max(self._pause() / 2, self._timing.renew * self._rng.uniform(0.8, 1.2) - since)

    def _now(self) -> str:
        return rfc3339_micro(self._clock.now())


class _LostError(Exception):
    """Another process holds the lease, or none does."""


async def _cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end; the caller reads its outcome."""
    task.cancel()
    await asyncio.wait({task})


@dataclass(frozen=True, kw_only=True)
class KubeRuntime:
    """Access to one cluster for one term of leadership.

    Attributes:
        client: the API server; its identity needs the rights that ``deploy/`` grants to the process.
        clock: the time.
        rng: for jitter; seeded in tests.
        may_act: returns True while this process may write; called before each write.
        recorders: record the decisions of the deciders, if the options ask for it.
    """

    client: Client
    clock: Clock
    rng: random.Random
    may_act: Callable[[], bool] = lambda: True
    recorders: Recorders = field(default_factory=Recorders)
