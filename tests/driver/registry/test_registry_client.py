"""The client against real registries."""

import pytest
from tests.driver.registry.servers import PASSWORD, REFRESH, SERVICE, USER, TokenServer, docker_config, silent

from tessera.api.image_reference import parse, parse_repository
from tessera.clock import SystemClock
from tessera.driver.images import Outcome
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.credentials import Keyring, parse_docker_config
from tessera.driver.registry.wire import (
    AccessRefused,
    ImageNotFound,
    RegistryHttp,
    RegistryUnreachable,
    Trust,
    WrongArchitecture,
)

NOBODY = Keyring()


def keys(host: str, **login: str) -> Keyring:
    return parse_docker_config(docker_config(host, **login), where="a test")


@pytest.mark.parametrize("tag", ["both", "docker-both"])
async def test_an_index_leads_to_each_architectures_own_image(client: RegistryClient, plain: str, tag: str) -> None:
    reference = parse(f"{plain}/nvidia/driver:{tag}")
    amd = await client.find_image(reference, "amd64", NOBODY)
    arm = await client.find_image(reference, "arm64", NOBODY)
    assert amd.top == arm.top == await client.find_digest(reference, NOBODY)
    assert len({amd.top, amd.digest, arm.digest}) == 3
    assert [each.text for each in amd.platforms] == ["linux/amd64", "linux/arm64"]
    assert 100 < amd.size_bytes < 1000
    again = await client.find_image(reference.at(arm.digest), "arm64", NOBODY)
    assert (again.digest, again.size_bytes) == (arm.digest, arm.size_bytes)


@pytest.mark.parametrize("tag", ["arm", "docker-amd"])
async def test_an_image_without_an_index_tells_its_architecture_itself(
    client: RegistryClient, plain: str, tag: str
) -> None:
    reference = parse(f"{plain}/nvidia/driver:{tag}")
    mine, other = ("arm64", "amd64") if tag == "arm" else ("amd64", "arm64")
    found = await client.find_image(reference, mine, NOBODY)
    assert found.top == found.digest
    with pytest.raises(WrongArchitecture, match=f"is there for linux/{mine}, not for linux/{other}"):
        await client.find_image(reference, other, NOBODY)


async def test_an_index_without_the_architecture_names_what_it_has(client: RegistryClient, plain: str) -> None:
    reference = parse(f"{plain}/nvidia/driver:index-of-one")
    assert (await client.find_image(reference, "arm64", NOBODY)).size_bytes
    with pytest.raises(WrongArchitecture, match="is there for linux/arm64/v8, not for linux/amd64") as told:
        await client.find_image(reference, "amd64", NOBODY)
    assert told.value.outcome is Outcome.WRONG_ARCHITECTURE


@pytest.mark.parametrize("name", ["nvidia/driver:none", "nobody/nothing:1", f"alone@sha256:{'0' * 64}"])
async def test_what_is_not_there_is_not_found(client: RegistryClient, plain: str, name: str) -> None:
    with pytest.raises(ImageNotFound, match=f"{plain} has no {name} \\(404\\)") as told:
        await client.find_image(parse(f"{plain}/{name}"), "amd64", NOBODY)
    assert told.value.outcome is Outcome.NOT_FOUND
    with pytest.raises(ImageNotFound):
        await client.find_digest(parse(f"{plain}/{name}"), NOBODY)


async def test_tags_are_listed(client: RegistryClient, plain: str) -> None:
    found = await client.list_tags(parse_repository(f"{plain}/nvidia/driver"), NOBODY)
    assert sorted(found) == ["arm", "both", "docker-amd", "docker-both", "index-of-one"]
    with pytest.raises(ImageNotFound):
        await client.list_tags(parse_repository(f"{plain}/nvidia/other"), NOBODY)


async def test_basic_authentication_opens_to_whom_it_should(client: RegistryClient, basic: str) -> None:
    reference = parse(f"{basic}/alone:1")
    assert (await client.find_image(reference, "amd64", keys(basic))).digest
    assert await client.list_tags(reference, keys(basic)) == ("1",)
    with pytest.raises(AccessRefused, match=r"alone be read without credentials \(401\).*give a pull secret") as told:
        await client.find_image(reference, "amd64", NOBODY)
    assert told.value.outcome is Outcome.UNAUTHORIZED
    wrong = keys(basic, username=USER, password="not-this-one")
    with pytest.raises(AccessRefused, match=r"with the credentials given \(401\)") as told:
        await client.find_image(reference, "amd64", wrong)
    assert "not-this-one" not in str(told.value)


async def test_a_token_is_fetched_for_the_repository_and_used_until_it_ends(
    client: RegistryClient, token_registry: tuple[str, TokenServer], tokens: TokenServer
) -> None:
    host = token_registry[0]
    for _ in range(2):
        assert (await client.find_image(parse(f"{host}/nvidia/driver:both"), "arm64", keys(host))).digest
    assert len(tokens.asked) == 1
    assert tokens.asked[0]["service"] == SERVICE
    assert tokens.asked[0]["scope"] == "repository:nvidia/driver:pull"
    await client.list_tags(parse_repository(f"{host}/alone"), keys(host))
    assert tokens.asked[1]["scope"] == "repository:alone:pull"


async def test_a_token_that_has_ended_is_fetched_anew(
    client: RegistryClient, token_registry: tuple[str, TokenServer], tokens: TokenServer
) -> None:
    tokens.lifetime = 0
    host = token_registry[0]
    for _ in range(2):
        await client.find_digest(parse(f"{host}/alone:1"), keys(host))
    assert len(tokens.asked) == 2


async def test_a_refresh_token_is_exchanged_as_oauth2_has_it(
    client: RegistryClient, token_registry: tuple[str, TokenServer], tokens: TokenServer
) -> None:
    host = token_registry[0]
    await client.find_digest(parse(f"{host}/alone:1"), keys(host, identitytoken=REFRESH))
    assert tokens.asked[0]["method"] == "POST"
    assert tokens.asked[0]["grant_type"] == "refresh_token"


async def test_a_token_server_may_serve_people_without_a_name(
    client: RegistryClient, token_registry: tuple[str, TokenServer], tokens: TokenServer
) -> None:
    host = token_registry[0]
    reference = parse(f"{host}/alone:1")
    with pytest.raises(AccessRefused, match=r"gives no token for alone \(401\) without credentials"):
        await client.find_digest(reference, NOBODY)
    tokens.anonymous = True
    assert await client.find_digest(reference, NOBODY)
    wrong = keys(host, username=USER, password=PASSWORD[:-1])
    with pytest.raises(AccessRefused, match="with the credentials given"):
        await client.find_digest(reference, wrong)


async def test_tls_needs_the_authority_and_an_encrypted_registry(tls: tuple[str, str], plain: str) -> None:
    host, authority = tls
    reference = parse(f"{host}/alone:1")
    commented = f"# Autorité de la maison\n{authority}"
    trusting = RegistryClient(RegistryHttp(Trust(authorities=commented), environment={}), SystemClock())
    strict = RegistryClient(RegistryHttp(Trust(), environment={}), SystemClock())
    try:
        assert (await trusting.find_image(reference, "amd64", NOBODY)).digest
        with pytest.raises(RegistryUnreachable, match=r"certificate is not trusted .*name the authority"):
            await strict.find_image(reference, "amd64", NOBODY)
        with pytest.raises(RegistryUnreachable, match="plain HTTP is used only where asked"):
            await strict.find_image(parse(f"{plain}/alone:1"), "amd64", NOBODY)
    finally:
        await trusting.close()
        await strict.close()


async def test_a_registry_that_never_answers_is_unreachable_after_the_time_given() -> None:
    hasty = RegistryClient(RegistryHttp(Trust(plain=("*",)), total=0.1, environment={}), SystemClock())
    try:
        with silent() as host, pytest.raises(RegistryUnreachable, match=r"did not answer within 0\.1 s") as told:
            await hasty.find_image(parse(f"{host}/alone:1"), "amd64", NOBODY)
        assert told.value.outcome is Outcome.UNREACHABLE
        with pytest.raises(RegistryUnreachable, match="connection refused"):
            await hasty.find_image(parse(f"{host}/alone:1"), "amd64", NOBODY)
    finally:
        await hasty.close()
