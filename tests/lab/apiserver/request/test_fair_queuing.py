"""The order in which waiting requests are served: levels by share, users in turn, no request lost."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.request.fair_queuing import (
    LARGEST_WIDTH,
    OBJECTS_PER_WIDTH,
    RELEASED_AT_ONCE,
    FairQueues,
    width_of,
)
from tessera_lab.apiserver.request.flow_schemas import SHARES, level_of
from tessera_lab.apiserver.request.routing import Route

ADMIN = UserInfo(name="kubernetes-admin", groups=("system:masters",))
OTHER = UserInfo(name="jane", groups=("system:authenticated",))
SCHEDULER = UserInfo(name="system:kube-scheduler", groups=("system:masters",))
CONTROLLER = service_account_user("tessera-system", "tessera-controller")
CORE_DNS = service_account_user("kube-system", "coredns")
AGENT = service_account_user("tessera-system", "tessera-agent")


def node(number: int) -> UserInfo:
    return UserInfo(name=f"system:node:n{number}", groups=("system:masters", "system:nodes"))


def resource(group: str, name: str, verb: str = "update") -> Route:
    return Route(verb=verb, group=group, version="v1", resource=name)


LEASE, NODE, EVENT = resource("coordination.k8s.io", "leases"), resource("", "nodes"), resource("", "events", "create")

USERS = (ADMIN, SCHEDULER, CONTROLLER, AGENT, node(1), node(2))


async def order(*waves: list[UserInfo]) -> list[UserInfo]:
    """The users in the order in which their requests were served; a wave arrives when all before it are waiting."""
    queues, served = FairQueues(), []

    async def ask(user: UserInfo) -> None:
        await queues.wait_turn(user)
        served.append(user)

    async with asyncio.TaskGroup() as group:
        for wave in waves:
            for user in wave:
                group.create_task(ask(user))
            await asyncio.sleep(0)
    return served


@pytest.mark.parametrize(
    ("user", "route", "level"),
    [
        (ADMIN, EVENT, "global-default"),
        (ADMIN, None, "global-default"),
        (CONTROLLER, EVENT, "workload-low"),
        (CONTROLLER, LEASE, "workload-low"),
        (CORE_DNS, EVENT, "workload-high"),
        (CORE_DNS, LEASE, "leader-election"),
        (SCHEDULER, EVENT, "workload-high"),
        (SCHEDULER, LEASE, "leader-election"),
        (SCHEDULER, resource("coordination.k8s.io", "leases", "list"), "workload-high"),
        (node(1), EVENT, "system"),
        (node(1), NODE, "node-high"),
        (node(1), LEASE, "node-high"),
    ],
)
def test_requests_have_the_levels_that_kube_apiserver_gives_them(
    user: UserInfo, route: Route | None, level: str
) -> None:
    assert level_of(user, route) == level


def test_a_list_is_as_wide_as_what_it_reads() -> None:
    edge = OBJECTS_PER_WIDTH
    assert [width_of(n) for n in (0, 1, edge, edge + 1, 100 * edge)] == [1, 1, 1, 2, LARGEST_WIDTH]


async def test_wide_lists_do_not_delay_the_leases_of_nodes() -> None:
    """One service account keeps 20 lists of many objects open, as a controller that lost its watches does."""
    queues = FairQueues()
    lists: list[int] = []
    renewed: list[int] = []

    async def flood() -> None:
        while len(renewed) < 100:
            await queues.wait_turn(AGENT, resource("", "pods", "list"), width=LARGEST_WIDTH)
            lists.append(1)

    async def renew(number: int) -> None:
        await queues.wait_turn(node(number), LEASE)
        renewed.append(len(lists))

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(flood())
        await asyncio.sleep(0)
        for number in range(100):
            group.create_task(renew(number))
    due = 100 / LARGEST_WIDTH * SHARES["workload-low"] / SHARES["node-high"]
    assert max(renewed) - min(renewed) <= due + 1


async def test_who_asks_for_much_gets_fewer_turns_in_a_level() -> None:
    queues, served = FairQueues(), []

    async def ask(user: UserInfo, width: int) -> None:
        await queues.wait_turn(user, width=width)
        served.append(user.name)

    await asyncio.gather(*(ask(AGENT, 10) for _ in range(20)), *(ask(CONTROLLER, 1) for _ in range(100)))
    counts = Counter(served[:55])
    assert counts[CONTROLLER.name] in range(48, 53)


async def test_a_flood_of_events_delays_no_other_level() -> None:
    served = await order([node(n) for n in range(500)], [CONTROLLER])
    assert served.index(CONTROLLER) <= 2 * RELEASED_AT_ONCE


async def test_levels_share_the_server_by_their_shares() -> None:
    served = await order([ADMIN] * 400 + [CONTROLLER] * 400)
    first = Counter(each.name for each in served[:250])
    ratio = SHARES[level_of(CONTROLLER)] / SHARES[level_of(ADMIN)]
    assert first[CONTROLLER.name] == round(250 * ratio / (ratio + 1))


async def test_users_of_a_level_take_turns() -> None:
    served = await order([AGENT] * 50 + [CONTROLLER] * 5)
    assert Counter(each.name for each in served[:10]) == {AGENT.name: 5, CONTROLLER.name: 5}


async def test_a_level_that_was_idle_gets_no_more_than_its_share_afterwards() -> None:
    queues = FairQueues()
    for _ in range(100):
        await queues.wait_turn(ADMIN)
    served: list[str] = []

    async def ask(user: UserInfo) -> None:
        await queues.wait_turn(user)
        served.append(user.name)

    await asyncio.gather(*(ask(SCHEDULER) for _ in range(50)), *(ask(ADMIN) for _ in range(50)))
    share = SHARES[level_of(SCHEDULER)] / (SHARES[level_of(SCHEDULER)] + SHARES[level_of(ADMIN)])
    assert Counter(served[:12])[SCHEDULER.name] <= 12 * share + 1, "no credit for the time before"


async def test_a_request_whose_client_has_given_up_costs_nothing() -> None:
    queues, served = FairQueues(), []
    waiting = [asyncio.ensure_future(queues.wait_turn(ADMIN)) for _ in range(1000)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()

    async def ask(user: UserInfo) -> None:
        await queues.wait_turn(user)
        served.append(user.name)

    await asyncio.gather(*(ask(OTHER) for _ in range(20)), ask(ADMIN))
    assert served.index(ADMIN.name) <= 2
    assert all(each.cancelled() for each in waiting)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.integers(0, len(USERS) - 1), max_size=30), max_size=6))
def test_every_request_is_served_once_and_those_of_a_user_in_order(waves: list[list[int]]) -> None:
    async def run() -> None:
        queues = FairQueues()
        served: dict[str, list[int]] = {each.name: [] for each in USERS}
        sent: dict[str, int] = Counter()

        async def ask(user: UserInfo, number: int) -> None:
            await queues.wait_turn(user)
            served[user.name].append(number)

        async with asyncio.TaskGroup() as group:
            for wave in waves:
                for index in wave:
                    name = USERS[index].name
                    group.create_task(ask(USERS[index], sent[name]))
                    sent[name] += 1
                await asyncio.sleep(0)
        assert served == {each.name: list(range(sent[each.name])) for each in USERS}

    asyncio.run(run())
