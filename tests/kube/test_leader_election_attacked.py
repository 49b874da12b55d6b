"""A Lease that others forge, spoil and delete, and an API server that fails just when a renewal is due."""

import asyncio
import logging
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.kube.conftest import cancelled, run_virtual
from tests.kube.electing import LeaseServer, Participant, now, refusal, until
from tests.support.searching import examples

INT32 = 2**31 - 1


def forged(server: LeaseServer, **spec: Any) -> None:
    """Somebody else writes the Lease, past the server's checks if need be."""
    was = server.lease or {"metadata": {"name": "l", "namespace": "n"}, "spec": {}}
    server.store({**was, "spec": {"holderIdentity": "stranger", **spec}})


async def end(*participants: Participant) -> None:
    await cancelled(*(each.task for each in participants))


@pytest.mark.parametrize("duration", [INT32, 2**31, 86_400])
def test_a_lease_of_68_years_is_waited_for_five_minutes(duration: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = LeaseServer()
        forged(server, leaseDurationSeconds=duration)
        one = Participant(server, "one")
        await until(lambda: one.leads, 320)
        assert now() >= 300
        await end(one)

    with caplog.at_level(logging.INFO):
        run_virtual(main())
    for fact in ("Lease n/l: ", f"spec.leaseDurationSeconds is {duration}", "waits for at most 300 seconds"):
        assert fact in caplog.text


@pytest.mark.parametrize("duration", [0, -1, -(2**31)])
def test_a_duration_that_is_none_counts_as_our_own(duration: int) -> None:
    async def main() -> None:
        server = LeaseServer()
        forged(server, leaseDurationSeconds=duration)
        one = Participant(server, "one")
        await asyncio.sleep(14)
        assert not one.reigns
        await until(lambda: one.leads, 5)
        await end(one)

    run_virtual(main())


@pytest.mark.parametrize("transitions", [INT32, 2**40, -3])
def test_transitions_at_the_end_of_their_range_begin_again(transitions: int) -> None:
    """One more than an int32 takes is refused by the API server: nobody would ever lead again."""

    async def main() -> None:
        server = LeaseServer()
        forged(server, leaseTransitions=transitions)
        one = Participant(server, "one")
        await until(lambda: one.leads, 20)
        assert server.lease
        assert server.lease["spec"]["leaseTransitions"] == 0
        await end(one)

    run_virtual(main())


@pytest.mark.parametrize(
    "spec",
    [
        {"renewTime": "9999-12-31T23:59:59.999999Z", "acquireTime": "9999-12-31T23:59:59.999999Z"},
        {"renewTime": "\x00\x1b[2J", "acquireTime": ""},
        {"renewTime": "yesterday"},
        {"holderIdentity": "h" * 2**20},
        {"holderIdentity": "\x1b[2J\u202e\x00"},
    ],
)
def test_times_and_names_of_others_are_never_read_as_ours(
    spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = LeaseServer()
        forged(server, **spec)
        one = Participant(server, "one")
        await until(lambda: one.leads, 20)
        forged(server, **spec)
        await until(lambda: not one.leads, 10)
        await until(lambda: one.leads, 20)
        await end(one)

    with caplog.at_level(logging.INFO):
        run_virtual(main())
    assert all(len(each) < 600 and each.isprintable() for each in caplog.messages)


@pytest.mark.parametrize("spec", [{"leaseTransitions": "many"}, {"leaseDurationSeconds": 1.5}, {"holderIdentity": {}}])
def test_a_lease_that_does_not_decode_is_named_with_the_way_out(
    spec: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = LeaseServer()
        forged(server, **spec)
        one = Participant(server, "one")
        await asyncio.sleep(30)
        assert not one.task.done()
        server.lease = None
        await until(lambda: one.leads, 5)
        await end(one)

    with caplog.at_level(logging.INFO):
        run_virtual(main())
    assert f"$.spec.{next(iter(spec))}" in caplog.text
    assert "delete the Lease n/l" in caplog.text


def test_a_stranger_who_renews_for_ever_is_named_and_nobody_acts(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = LeaseServer()
        forged(server)
        one = Participant(server, "one")
        for second in range(600):
            forged(server, renewTime=str(second), leaseDurationSeconds=15)
            await asyncio.sleep(1)
        assert not one.reigns
        await until(lambda: one.leads, 20)
        await end(one)

    with caplog.at_level(logging.INFO):
        run_virtual(main())
    said = [each for each in caplog.messages if "stranger" in each]
    assert len(said) < 5
    assert "if no such process is there, delete the Lease" in said[0]


def test_a_deleted_lease_lets_nobody_begin_beside_the_leader_that_has_not_noticed() -> None:
    """Seen before: the other made the Lease anew and led, up to five seconds beside the one that still acted."""

    async def main() -> None:
        for wait in range(12):
            server = LeaseServer()
            one = Participant(server, "one", stopping=1.0)
            await until(lambda one=one: one.leads)  # type: ignore[misc]
            two = Participant(server, "two")
            await asyncio.sleep(20 + wait / 2)
            server.lease = None
            for _ in range(600):
                await asyncio.sleep(0.05)
                assert not (one.leads and two.leads)
            assert one.leads or two.leads
            await end(one, two)

    run_virtual(main())


def test_one_connection_that_is_dead_costs_no_leadership() -> None:
    """The renewal never gets an answer; the next try goes over another connection."""

    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        for _ in range(20):
            one.wire.refusals.append(None)
            await asyncio.sleep(9)
        assert len(one.reigns) == 1
        assert one.leads
        await end(one)

    run_virtual(main())


@pytest.mark.parametrize("seconds", [1.0, 3.0, 4.0])
def test_a_server_that_takes_seconds_for_each_answer_costs_no_leadership(seconds: float) -> None:
    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        one.wire.delay = seconds
        await asyncio.sleep(300)
        assert len(one.reigns) == 1
        assert one.leads
        await end(one)

    run_virtual(main())


@pytest.mark.parametrize(
    ("code", "reason", "pause"),
    [
        (401, "Unauthorized", ""),
        (409, "Conflict", ""),
        (410, "Expired", ""),
        (429, "TooManyRequests", "1"),
        (429, "TooManyRequests", "30"),
        (500, "InternalError", ""),
        (503, "ServiceUnavailable", "30"),
        (504, "Timeout", ""),
    ],
)
def test_one_refused_renewal_costs_no_leadership(code: int, reason: str, pause: str) -> None:
    """A 429 with ``Retry-After: 30`` made the client wait past the deadline."""

    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        headers = {"retry-after": pause} if pause else {}
        for _ in range(20):
            one.wire.refusals.append(refusal(code, reason, **headers))
            await asyncio.sleep(8)
        assert len(one.reigns) == 1
        assert one.leads
        await end(one)

    run_virtual(main())


@pytest.mark.parametrize("period", [0.05, 0.3, 1.0])
def test_somebody_who_writes_the_lease_all_the_time_costs_no_leadership(period: float) -> None:
    """Annotations, or fields that are not read: each makes the renewal conflict."""

    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        began = now()
        while now() - began < 120:
            await asyncio.sleep(period)
            assert server.lease
            server.store(server.lease)
        assert len(one.reigns) == 1
        assert one.leads
        await end(one)

    run_virtual(main())


def test_a_claim_that_is_refused_for_days_takes_no_memory() -> None:
    async def main() -> None:
        server = LeaseServer()
        forged(server, holderIdentity="")
        one = Participant(server, "one")
        one.wire.refusals.extend(refusal(403, "Forbidden") for _ in range(1_000))
        await asyncio.sleep(1_900)
        assert len(one.elector._unacknowledged) < 5
        await until(lambda: one.leads, 5_000)
        await end(one)

    run_virtual(main())


class Storm:
    """Two participants, and a server, wires and strangers that do their worst."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = LeaseServer()
        self.both = [Participant(self.server, name, skew=self.chance.uniform(-9e3, 9e3)) for name in ("one", "two")]

    async def blow(self) -> None:
        await until(lambda: all(each.elector._version for each in self.both))
        for _ in range(self.chance.randint(1, 40)):
            self.chance.choice((self.wire, self.wire, self.refuse, self.forge, self.delete, self.touch))()
            await self.watch(self.chance.uniform(0, 12))

    def wire(self) -> None:
        one = self.chance.choice(self.both)
        one.wire.state = self.chance.choice(("up", "up", "broken", "hung", "deaf"))
        one.wire.delay = self.chance.choice((0.01, 0.5, 4.0, 15.0))

    def refuse(self) -> None:
        codes = (
            (409, "Conflict"),
            (410, "Expired"),
            (429, "TooManyRequests"),
            (500, "InternalError"),
            (404, "NotFound"),
        )
        code, reason = self.chance.choice(codes)
        answer = refusal(code, reason, **{"retry-after": str(self.chance.choice((0, 1, 30)))})
        self.chance.choice(self.both).wire.refusals.append(self.chance.choice((answer, None)))

    def forge(self) -> None:
        """Never as a release or with a short duration: who may write these ends a lease by right."""
        numbers = (0, -1, 15, 200, INT32, 2**31)
        forged(
            self.server,
            holderIdentity=self.chance.choice(("stranger", "h" * 5000, "\x00")),
            leaseDurationSeconds=self.chance.choice((*numbers, None)),
            leaseTransitions=self.chance.choice((*numbers, None)),
            renewTime=self.chance.choice(("", "x", "9999-12-31T23:59:59Z", None)),
        )

    def delete(self) -> None:
        self.server.lease = None

    def touch(self) -> None:
        if self.server.lease is not None:
            self.server.store(self.server.lease)

    async def watch(self, seconds: float) -> None:
        end = now() + seconds
        while now() < end:
            assert not all(each.leads for each in self.both)
            await asyncio.sleep(0.2)

    async def calm(self) -> None:
        """All is well again: one leads before long, and goes on."""
        for each in self.both:
            each.wire.state, each.wire.delay = "up", 0.01
            each.wire.refusals.clear()
            assert not each.task.done()
        await self.watch(330)
        assert any(each.leads for each in self.both)
        counted = [len(each.reigns) for each in self.both]
        await self.watch(60)
        assert counted == [len(each.reigns) for each in self.both]


@settings(max_examples=examples(60))
@given(st.integers(0, 2**64 - 1))
def test_whatever_happens_two_never_lead_and_one_leads_in_the_end(seed: int) -> None:
    async def main() -> None:
        storm = Storm(seed)
        await storm.blow()
        await storm.calm()
        await end(*storm.both)

    run_virtual(main())
