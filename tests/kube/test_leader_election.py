"""One leader at a time, on virtual time, against an API that may be slow, wrong or silent."""

import asyncio
import functools
import random

import pytest
from tests.kube.conftest import cancelled, run_virtual
from tests.kube.electing import EPOCH, LeaseServer, Participant, Wire, now, until

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.leader_election import LeaderElector, LeaseTiming
from tessera.kube.requests import Request, Response


def test_one_of_two_leads_and_keeps_leading() -> None:
    async def main() -> None:
        server = LeaseServer()
        one, two = Participant(server, "one"), Participant(server, "two")
        await asyncio.sleep(100)
        assert [one.leads, two.leads].count(True) == 1
        assert len(one.reigns) + len(two.reigns) == 1
        assert one.elector.is_leader != two.elector.is_leader
        await cancelled(one.task, two.task)

    run_virtual(main())


def test_a_clean_stop_gives_the_lease_back_and_the_other_takes_over_within_a_retry() -> None:
    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one", stopping=1.0)
        await until(lambda: one.leads)
        two = Participant(server, "two")
        await asyncio.sleep(10)
        stopped = now()
        await cancelled(one.task)
        assert server.lease
        assert server.lease["spec"]["holderIdentity"] == ""
        assert one.reigns[0][1] - stopped == pytest.approx(1.0)
        await until(lambda: two.leads, 4)
        assert server.lease["spec"]["leaseTransitions"] >= 1
        await cancelled(two.task)

    run_virtual(main())


@pytest.mark.parametrize("state", ["hung", "broken", "deaf"])
def test_a_leader_whose_api_fails_stops_before_another_may_begin(state: str) -> None:
    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one", stopping=4.5)
        await until(lambda: one.leads)
        two = Participant(server, "two")
        await asyncio.sleep(20)
        one.wire.state = state
        await until(lambda: two.leads)
        began, ended = one.reigns[0]
        assert ended < two.reigns[0][0]
        assert not one.elector.is_leader
        # It acted until ten seconds after the last renewal, and had stopped before the fifteenth.
        last = max(
            at for at, holder in server.holders if holder == "one" and (state == "deaf" or at < two.reigns[0][0])
        )
        assert ended - began > 20
        assert ended <= last + 15
        await cancelled(one.task, two.task)

    run_virtual(main())


def test_an_answer_that_is_lost_now_and_then_costs_nothing() -> None:
    """The renewal was written but not acknowledged: the next try conflicts with our own write and goes on."""

    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        for _ in range(10):
            one.wire.state = "deaf"
            await asyncio.sleep(2.5)
            one.wire.state = "up"
            await asyncio.sleep(6)
        assert len(one.reigns) == 1
        assert one.leads
        await cancelled(one.task)

    run_virtual(main())


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_skewed_clocks_neither_steal_nor_wait_for_ever(skew: float) -> None:
    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        two = Participant(server, "two", skew=skew)
        await asyncio.sleep(60)
        assert one.leads
        assert not two.reigns
        one.wire.state = "hung"
        died = now()
        await until(lambda: two.leads)
        assert 10 < now() - died < 20
        await cancelled(one.task, two.task)

    run_virtual(main())


def test_the_duration_that_a_holder_wrote_is_waited_for() -> None:
    async def main() -> None:
        server = LeaseServer()
        spec = {"holderIdentity": "other", "leaseDurationSeconds": 60, "leaseTransitions": 3}
        server.store({"metadata": {"name": "l", "namespace": "n"}, "spec": spec})
        began, one = now(), Participant(server, "one")
        await until(lambda: one.leads)
        assert 60 <= now() - began < 65
        assert server.lease
        assert server.lease["spec"]["leaseTransitions"] == 4
        await cancelled(one.task)

    run_virtual(main())


def test_taking_the_lease_anew_under_the_same_name_is_no_transition() -> None:
    async def main() -> None:
        server = LeaseServer()
        for _ in range(2):
            one = Participant(server, "one")
            await until(functools.partial(getattr, one, "leads"))
            one.wire.state = "broken"  # so that it cannot give it back
            await cancelled(one.task)
        assert server.lease
        assert server.lease["spec"].get("leaseTransitions", 0) == 0

    run_virtual(main())


def test_somebody_who_takes_the_lease_by_force_ends_the_reign_at_the_next_renewal() -> None:
    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        assert server.lease
        server.store({**server.lease, "spec": {**server.lease["spec"], "holderIdentity": "admin"}})
        forced = now()
        await until(lambda: not one.leads)
        assert now() - forced < 5
        await until(lambda: one.leads)
        assert now() - forced > 14
        await cancelled(one.task)

    run_virtual(main())


def test_a_deleted_lease_ends_the_reign() -> None:
    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        server.lease = None
        await until(lambda: len(one.reigns) == 2)
        await cancelled(one.task)

    run_virtual(main())


def test_a_leader_that_ends_by_itself_ends_the_run_and_its_error_comes_out() -> None:
    async def main() -> None:
        server = LeaseServer()
        clock = LoopClock(EPOCH)
        client = Client(Wire(server), field_manager="x", clock=clock)
        elector = LeaderElector(client, namespace="n", name="l", identity="x", clock=clock, rng=random.Random(1))

        async def lead() -> None:
            await asyncio.sleep(1)
            raise LookupError("broken")

        with pytest.raises(LookupError):
            await elector.run(lead)
        assert server.lease
        assert server.lease["spec"]["holderIdentity"] == ""

    run_virtual(main())


def test_an_answer_to_the_claim_that_comes_too_late_starts_nothing() -> None:
    class SlowOnce(Wire):
        slow = True

        async def request(self, request: Request) -> Response:
            answer = await super().request(request)
            if request.method == "POST" and self.slow:
                self.slow = False
                await asyncio.sleep(12)
            return answer

    async def main() -> None:
        server = LeaseServer()
        clock = LoopClock(EPOCH)
        client = Client(SlowOnce(server), field_manager="x", clock=clock)
        elector = LeaderElector(client, namespace="n", name="l", identity="x", clock=clock, rng=random.Random(1))
        led: list[float] = []

        async def lead() -> None:
            led.append(server.holders[-1][0] + 10 - now())

        await elector.run(lead)
        assert led[0] > 9
        assert len(led) == 1

    run_virtual(main())


def test_a_lease_that_nobody_disputes_costs_15_writes_a_minute() -> None:
    """Every 2 s as client-go renews, it was most of what a quiet cluster costs."""

    async def main() -> None:
        server = LeaseServer()
        one = Participant(server, "one")
        await until(lambda: one.leads)
        assert server.lease
        before = int(server.lease["metadata"]["resourceVersion"])
        await asyncio.sleep(600)
        assert 140 <= int(server.lease["metadata"]["resourceVersion"]) - before <= 160
        assert len(one.reigns) == 1
        await cancelled(one.task)

    run_virtual(main())


@pytest.mark.parametrize(
    "timing", [(10, 10.0, 2.0, 4.0), (15, 2.0, 2.0, 4.0), (15, 10.0, 0.0, 4.0), (15, 10.0, 2.0, 5.0)]
)
def test_timings_that_leave_no_room_to_stop_are_refused(timing: tuple[int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="deadline"):
        LeaseTiming(*timing)
