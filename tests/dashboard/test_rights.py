"""What a person sees follows the cluster's RBAC, and hides what could not be asked."""

import pytest
from tests.dashboard.guarded import Guarded

from tessera.access.reviewer import Person, Reviewer
from tessera.dashboard.visitors import PAGE_NAMESPACES, PAGE_REVIEWS, REFUSAL_LIFE, RIGHTS_LIFE, Rights
from tessera.visibility import About, Visibility

TEAM_A = Visibility(namespaces=frozenset({"team-a"}))
ANN = Person("ann", groups=("people", "system:authenticated"))


class Named:
    """The namespaces that documents name."""

    def __init__(self, *names: str, workloads: tuple[str, ...] = ()) -> None:
        self.names, self.workloads = frozenset(names), frozenset(workloads)

    def rights(self, cluster: Guarded) -> Rights:
        return Rights(Reviewer(cluster.page), cluster.clock, lambda: About(self.names, self.workloads))


async def test_an_administrator_sees_everything_by_two_questions() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "nodes")
    await cluster.let("ann", "pods")
    assert (await Named(*"abcdef").rights(cluster).visibility(ANN)).full
    assert len(cluster.asked) == 2


async def test_a_tenant_sees_its_own_namespaces_and_one_without_rights_none() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "pods", ["team-a", "team-c", "without-cards"])
    rights = Named("team-a", "team-b", "team-c").rights(cluster)
    assert await rights.visibility(ANN) == Visibility(namespaces=frozenset({"team-a", "team-c"}))
    assert await rights.visibility(Person("eve")) == Visibility()


async def test_workloads_of_kueue_follow_their_own_right() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "pods", ["team-a"])
    await cluster.let("ann", "workloads", ["team-b", "team-c"])
    await cluster.let("root", "workloads")
    rights = Named("team-a", "team-b", workloads=("team-a", "team-b")).rights(cluster)
    seen = await rights.visibility(ANN)
    assert seen == Visibility(namespaces=frozenset({"team-a"}), workloads=frozenset({"team-b"}))
    assert (await rights.visibility(Person("root"))).workloads is None
    assert (await rights.visibility(Person("eve"))).workloads == frozenset()


async def test_nothing_is_asked_about_workloads_where_none_wait() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "workloads")
    rights = Named("team-a").rights(cluster)
    assert (await rights.visibility(ANN)).workloads == frozenset()
    assert len(cluster.asked) == 3  # nodes, pods, pods of team-a


async def test_a_right_of_a_group_counts() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "nodes")
    rights = Named().rights(cluster)
    assert (await rights.visibility(ANN)).nodes
    assert not (await rights.visibility(Person("ann2", groups=ANN.groups))).nodes


async def test_a_right_that_is_withdrawn_ends_within_its_life() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "pods", ["team-a"])
    rights = Named("team-a").rights(cluster)
    assert await rights.visibility(ANN) == TEAM_A
    await cluster.forbid("ann", "pods", "team-a")
    cluster.clock.seconds += RIGHTS_LIFE / 2
    assert await rights.visibility(ANN) == Visibility()


async def test_names_are_hidden_once_the_api_server_was_away_for_too_long() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "pods", ["team-a"])
    rights = Named("team-a").rights(cluster)
    await rights.visibility(ANN)
    cluster.silent = True
    cluster.clock.seconds += RIGHTS_LIFE - 1
    assert await rights.visibility(ANN) == TEAM_A
    cluster.clock.seconds += 1
    assert await rights.visibility(ANN) == Visibility()


async def test_a_namespace_counts_for_a_while_after_its_last_document() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "pods", ["team-a"])
    named = Named("team-a")
    rights = named.rights(cluster)
    await rights.visibility(ANN)
    named.names = frozenset()
    cluster.clock.seconds += 300
    assert await rights.visibility(ANN) == TEAM_A
    cluster.clock.seconds += 301
    assert await rights.visibility(ANN) == Visibility()


async def test_thousands_of_namespaces_cost_a_bounded_number_of_questions() -> None:
    cluster = Guarded()
    await cluster.begin()
    rights = Named(*(f"team-{number}" for number in range(5_000))).rights(cluster)
    await rights.visibility(ANN)
    assert len(cluster.asked) == PAGE_REVIEWS
    for _ in range(20):
        cluster.clock.seconds += 1
        await rights.visibility(ANN)
    assert len(cluster.asked) <= 3 * (PAGE_NAMESPACES + 2), "refused ones are asked for again each ten seconds"


async def test_many_new_visitors_do_not_let_the_answers_of_others_run_out() -> None:
    cluster = Guarded()
    await cluster.begin()
    await cluster.let("ann", "nodes")
    rights = Named().rights(cluster)
    assert (await rights.visibility(ANN)).nodes
    cluster.clock.seconds += RIGHTS_LIFE - 1
    for number in range(2 * PAGE_REVIEWS):
        await rights.visibility(Person(f"robot-{number}"))
    assert (await rights.visibility(ANN)).nodes
    cluster.clock.seconds += 2
    assert (await rights.visibility(ANN)).nodes


#: With ten people the refused rights, which are asked for each ten seconds, take the whole pace already.
@pytest.mark.parametrize("number", [10, pytest.param(60, marks=pytest.mark.soak)])
async def test_workloads_in_many_namespaces_hide_no_names_of_pods(number: int) -> None:
    cluster = Guarded()
    await cluster.begin()
    people = [Person(f"tenant-{each}") for each in range(number)]
    for each in people:
        await cluster.let(each.name, "pods", ["team-a"])
    held = tuple(f"held-{each}" for each in range(100))
    await cluster.let(people[-1].name, "workloads", ["held-99"])
    rights = Named("team-a", "team-b", workloads=held).rights(cluster)
    found = []
    for _ in range(2 * RIGHTS_LIFE):
        found = [await rights.visibility(each) for each in people]
        cluster.clock.seconds += 1
    assert all(each.namespaces == frozenset({"team-a"}) for each in found)
    # 101 rights of each person, whose part of 100 answers a second is at least one: each right has been asked for by
    # then, and those that are there do not run out.
    assert found[-1].workloads == frozenset({"held-99"})


async def test_of_more_rights_than_the_pace_allows_each_gets_its_turn() -> None:
    cluster = Guarded()
    await cluster.begin()
    names = [f"team-{number}" for number in range(4 * PAGE_REVIEWS)]
    await cluster.let("ann", "pods", [names[0], names[-1]])
    rights = Named(*names).rights(cluster)
    found = Visibility()
    for _ in range(10):
        found = await rights.visibility(ANN)
        cluster.clock.seconds += RIGHTS_LIFE - 1
    assert found.namespaces == frozenset({names[0], names[-1]})


async def test_a_right_that_was_granted_after_a_refusal_counts_soon() -> None:
    cluster = Guarded()
    await cluster.begin()
    rights = Named("team-a").rights(cluster)
    assert await rights.visibility(ANN) == Visibility()
    await cluster.let("ann", "pods", ["team-a"])
    cluster.clock.seconds += REFUSAL_LIFE
    assert await rights.visibility(ANN) == TEAM_A
