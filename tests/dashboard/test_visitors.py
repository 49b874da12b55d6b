"""Who may come in: tokens that the API server accepts, as long as it does, whatever others try."""

import logging
from collections import Counter

import pytest
from tests.dashboard.guarded import Guarded

from tessera.access.reviewer import Reviewer
from tessera.dashboard.visitors import (
    PAGE_TOKENS,
    REFUSAL_LIFE,
    REFUSED_TOKENS,
    RIGHTS_LIFE,
    TOKEN_REVIEWS,
    LoginNeededError,
    NotNowError,
    Rights,
    TokenGate,
)
from tessera.visibility import About, Visibility
from tessera_lab.apiserver.interfaces import UserInfo


def gate(cluster: Guarded, *, nameless: bool = False) -> TokenGate:
    reviewer = Reviewer(cluster.page)
    rights = Rights(reviewer, cluster.clock, lambda: About(pods=frozenset({"team-a"})))
    return TokenGate(reviewer, rights, cluster.clock, nameless=nameless)


async def test_a_token_gives_the_rights_of_its_owner() -> None:
    cluster = Guarded("ann")
    await cluster.begin()
    await cluster.let("ann", "pods", ["team-a"])
    visitor = await gate(cluster).admit("Bearer token-ann", "10.0.0.1")
    assert visitor.name == "ann"
    assert await visitor.visibility() == Visibility(namespaces=frozenset({"team-a"}))


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dTpw", "token-ann", "Bearer token-eve", "Bearer ä"])
async def test_anything_else_has_to_log_in(header: str) -> None:
    with pytest.raises(LoginNeededError):
        await gate(Guarded("ann")).admit(header, "10.0.0.1")


async def test_no_token_is_refused_or_sees_no_names_as_the_administrator_chose() -> None:
    with pytest.raises(LoginNeededError, match="Authorization: Bearer TOKEN"):
        await gate(Guarded()).admit(None, "10.0.0.1")
    visitor = await gate(Guarded(), nameless=True).admit(None, "10.0.0.1")
    assert await visitor.visibility() == Visibility()


async def test_a_token_that_the_api_server_withdraws_ends_a_visit_within_its_life() -> None:
    cluster = Guarded("ann")
    visitor = await gate(cluster).admit("Bearer token-ann", "10.0.0.1")
    cluster.server.identities.static.clear()
    cluster.clock.seconds += RIGHTS_LIFE / 2
    with pytest.raises(LoginNeededError):
        await visitor.visibility()
    with pytest.raises(LoginNeededError):
        await visitor.visibility()


async def test_while_the_api_server_is_away_a_visit_ends_with_the_life_of_its_answer() -> None:
    cluster = Guarded("ann")
    visitor = await gate(cluster).admit("Bearer token-ann", "10.0.0.1")
    cluster.silent = True
    cluster.clock.seconds += RIGHTS_LIFE - 1
    await visitor.visibility()
    cluster.clock.seconds += 1
    with pytest.raises(NotNowError) as refusal:
        await visitor.visibility()
    assert refusal.value.code == 503


async def test_10_000_different_tokens_cost_few_reviews_and_disturb_nobody_who_is_in() -> None:
    cluster = Guarded("ann")
    door = gate(cluster)
    visitor = await door.admit("Bearer token-ann", "10.0.0.1")
    codes = Counter[int]()
    for number in range(10_000):
        try:
            await door.admit(f"Bearer forged-{number}", "10.0.0.1")
        except LoginNeededError:
            codes[401] += 1
        except NotNowError as error:
            codes[error.code] += 1
    assert codes == {401: TOKEN_REVIEWS - 1, 429: 10_001 - TOKEN_REVIEWS}
    cluster.clock.seconds += RIGHTS_LIFE / 2
    await visitor.visibility()
    assert cluster.asked.count("tokenreviews") == TOKEN_REVIEWS + 1


async def test_what_is_remembered_is_bounded() -> None:
    cluster = Guarded(*(f"user-{number}" for number in range(PAGE_TOKENS + 20)))
    door = gate(cluster)
    for number in range(PAGE_TOKENS + 20):
        cluster.clock.seconds += 0.001
        if number % TOKEN_REVIEWS == 0:
            cluster.clock.seconds += 1
        await door.admit(f"Bearer token-user-{number}", "10.0.0.1")
    assert len(door._known) == PAGE_TOKENS
    for number in range(REFUSED_TOKENS + 20):
        if number % TOKEN_REVIEWS == 0:
            cluster.clock.seconds += 1
        with pytest.raises(LoginNeededError):
            await door.admit(f"Bearer forged-{number}", "10.0.0.1")
    assert len(door._refused) == REFUSED_TOKENS


async def test_a_refused_token_is_not_asked_for_again_and_again() -> None:
    cluster = Guarded()
    door = gate(cluster)
    for _ in range(100):
        with pytest.raises(LoginNeededError):
            await door.admit("Bearer forged", "10.0.0.1")
    assert cluster.asked == ["tokenreviews"]


async def test_a_token_that_comes_before_its_account_is_valid_soon() -> None:
    cluster = Guarded()
    door = gate(cluster)
    with pytest.raises(LoginNeededError):
        await door.admit("Bearer token-new", "10.0.0.1")
    cluster.server.identities.static["token-new"] = UserInfo(name="new")
    cluster.clock.seconds += REFUSAL_LIFE
    assert (await door.admit("Bearer token-new", "10.0.0.1")).name == "new"


async def test_no_token_stands_in_a_log_an_error_or_the_memory_of_the_gate(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Guarded("ann")
    door = gate(cluster)
    with caplog.at_level(logging.DEBUG):
        await door.admit("Bearer token-ann", "10.0.0.1")
        with pytest.raises(LoginNeededError) as refusal:
            await door.admit("Bearer token-forged", "10.0.0.1")
        cluster.silent = True
        with pytest.raises(NotNowError) as silence:
            await door.admit("Bearer token-other", "10.0.0.1")
    assert "token-" not in caplog.text + str(refusal.value) + str(silence.value)
    assert b"token-ann" not in b"".join(door._known._answers)


async def test_service_accounts_of_a_namespace_count_as_one_user() -> None:
    cluster = Guarded(*(f"system:serviceaccount:team-a:robot-{number}" for number in range(3)), "ann")
    door = gate(cluster)
    robots = [f"Bearer token-system:serviceaccount:team-a:robot-{number}" for number in range(3)]
    keys = {(await door.admit(each, "10.0.0.1")).key for each in robots}
    assert len(keys) == 1
    assert (await door.admit("Bearer token-ann", "10.0.0.1")).key not in keys


async def test_an_address_that_tries_many_tokens_takes_no_log_in_from_another() -> None:
    cluster = Guarded("ann", "bob")
    door = gate(cluster)
    for second in range(3):
        cluster.clock.seconds += 1
        for number in range(1_000):
            with pytest.raises((LoginNeededError, NotNowError)):
                await door.admit(f"Bearer forged-{second}-{number}", "10.0.0.6")
        if second:
            assert (await door.admit(f"Bearer token-{('ann', 'bob')[second - 1]}", "10.0.0.1")).name
        else:
            with pytest.raises(NotNowError):
                await door.admit("Bearer token-ann", "10.0.0.1")
