"""The order in which waiting requests are served: levels by share, users in turn, no request lost."""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.request.fair_queuing import RELEASED_AT_ONCE, SHARES, FairQueues, level_of

ADMIN = UserInfo(name="kubernetes-admin", groups=("system:masters",))
SCHEDULER = UserInfo(name="system:kube-scheduler", groups=("system:masters",))
CONTROLLER = service_account_user("tessera-system", "tessera-controller")
AGENT = service_account_user("tessera-system", "tessera-agent")


def node(number: int) -> UserInfo:
    return UserInfo(name=f"system:node:n{number}", groups=("system:masters", "system:nodes"))


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


def test_users_have_the_levels_that_kube_apiserver_gives_them() -> None:
    assert [level_of(each) for each in (ADMIN, SCHEDULER, CONTROLLER, node(1))] == [
        "global-default",
        "workload-high",
        "workload-low",
        "system",
    ]


async def test_a_flood_of_events_delays_no_other_level() -> None:
    served = await order([node(n) for n in range(500)], [CONTROLLER])
    assert served.index(CONTROLLER) <= 2 * RELEASED_AT_ONCE


async def test_levels_share_the_server_by_their_shares() -> None:
    served = await order([ADMIN] * 400 + [CONTROLLER] * 400)
    first = Counter(each.name for each in served[:250])
    ratio = SHARES[level_of(CONTROLLER)] / SHARES[level_of(ADMIN)]
    assert first[CONTROLLER.name] == 250 * ratio / (ratio + 1)


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
    assert Counter(served[:12])[SCHEDULER.name] <= 3, "its share is one of six, and no credit for the time before"


async def test_a_request_whose_client_has_given_up_takes_no_turn() -> None:
    queues = FairQueues()
    waiting = [asyncio.ensure_future(queues.wait_turn(ADMIN)) for _ in range(100)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.wait_for(queues.wait_turn(ADMIN), 1)
    assert all(each.cancelled() for each in waiting)


@settings(max_examples=50, deadline=None)
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
