"""Images are looked up: in order, once, remembered, and through outages."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.driver.registry.image_repository import ImageRepository, ManualClock, resolving
from tests.driver.registry.programs import Image, registry
from tests.driver.registry.servers import HTPASSWD, docker_config, serving, silent

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolver, list_mirror_sources
from tessera.driver.registry.credentials import CredentialsError, Keyring, parse_docker_config
from tessera.driver.registry.resolver import (
    FOUND_FOR,
    LONGEST_PAUSE,
    MISSING_FOR,
    CachedImage,
    RegistryResolver,
    Secrets,
)
from tessera.gpu_operator.driver_policy import ImageSource

UBUNTU = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
RHEL = PoolKey(os_id="rhel", os_version="9.8", kernel="5.14.0-687.39.1.el9_8.x86_64", architecture="amd64")
RELEASE = "5.14.0-284.54.1.el9_2"
RHCOS = [
    PoolKey(os_id="rhcos", os_version="4.15", kernel=f"{RELEASE}.{suffix}", architecture=architecture, page_kib=pages)
    for suffix, architecture, pages in (("x86_64", "amd64", 4), ("aarch64", "arm64", 4), ("aarch64+64k", "arm64", 64))
]


@pytest.fixture
async def repository() -> AsyncIterator[ImageRepository]:
    made = ImageRepository()
    async with serving(made.answer) as host:
        made.host = host
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def resolver(clock: ManualClock) -> AsyncIterator[RegistryResolver]:
    async with resolving(clock) as made:
        yield made


def tag(form: str, version: str = "580.65.06", kernel: str = RHEL.kernel) -> str:
    return f"{version}-{kernel}-{form}"


async def test_the_first_candidate_that_is_there_is_pinned_and_says_which_one_it_was(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock
) -> None:
    repository.images = {tag("rhel9"): ("amd64", "arm64"), tag("rhcos4.22"): ("amd64",)}
    found = await resolver.resolve(repository.query(RHEL))
    assert (found.outcome, found.tag, found.stale) == (Outcome.FOUND, tag("rhel9"), False)
    assert found.reference == f"{repository.host}/nvidia/driver:{tag('rhel9')}"
    assert found.pinned == f"{repository.host}/nvidia/driver@{found.digest}"
    assert (found.size_bytes, found.checked) == (100, clock.now())
    assert [each.outcome for each in found.tried] == [Outcome.NOT_FOUND, Outcome.FOUND]
    assert "(404)" in found.tried[0].text


async def test_five_pools_of_one_cluster_get_five_images(repository: ImageRepository, resolver: Resolver) -> None:
    noble = msgspec.structs.replace(UBUNTU, os_version="24.04", kernel="6.8.0-31-generic")
    pools = [UBUNTU, noble, *RHCOS]
    repository.images = {
        tag("ubuntu22.04", kernel=UBUNTU.kernel): ("amd64",),
        tag("ubuntu24.04", kernel=noble.kernel): ("amd64",),
        tag("rhcos4.15", kernel=f"{RELEASE}.x86_64"): ("amd64",),
        tag("rhcos4.15", kernel=f"{RELEASE}.aarch64"): ("arm64",),
        tag("rhcos4.15", kernel=f"{RELEASE}.aarch64_64k"): ("arm64",),
    }
    found = [await resolver.resolve(repository.query(pool)) for pool in pools]
    assert [each.tag for each in found] == list(repository.images)
    assert len({each.digest for each in found}) == 5


async def test_another_architecture_is_not_taken_and_is_told_as_such(
    repository: ImageRepository, resolver: Resolver
) -> None:
    repository.images = {tag("rhel9.8"): ("arm64",)}
    found = await resolver.resolve(repository.query(RHEL))
    assert (found.outcome, found.digest, found.pinned) == (Outcome.WRONG_ARCHITECTURE, "", "")
    assert "is there for linux/arm64, not for linux/amd64" in found.tried[0].text
    repository.images[tag("rhel9")] = ("amd64",)
    assert (await resolver.resolve(repository.query(RHEL), fresh=True)).tag == tag("rhel9")


async def test_a_refusal_ends_the_search(repository: ImageRepository, resolver: Resolver) -> None:
    repository.status = 403
    found = await resolver.resolve(repository.query(RHEL))
    assert found.outcome is Outcome.UNAUTHORIZED
    assert len(found.tried) == len(repository.requests) == 1


async def test_what_was_found_is_believed_and_then_only_its_digest_is_asked_for(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock
) -> None:
    repository.images = {tag("rhel9.8"): ("amd64",)}
    first = await resolver.resolve(repository.query(RHEL))
    asked = len(repository.requests)
    clock.time += FOUND_FOR - 1
    assert await resolver.resolve(repository.query(RHEL)) == first
    assert len(repository.requests) == asked
    clock.time += 1
    again = await resolver.resolve(repository.query(RHEL))
    assert (again.digest, again.checked) == (first.digest, clock.now())
    assert repository.requests[asked:] == [f"HEAD {tag('rhel9.8')}"]


async def test_a_tag_that_has_moved_is_read_anew(repository: ImageRepository, resolver: Resolver) -> None:
    repository.images = {tag("rhel9.8"): ("arm64", "amd64")}
    before = await resolver.resolve(repository.query(RHEL))
    repository.images = {tag("rhel9.8"): ("amd64", "s390x")}
    after = await resolver.resolve(repository.query(RHEL), fresh=True)
    assert after.outcome is Outcome.FOUND
    assert after.digest == before.digest  # of the image for amd64, which has stayed; the index is another
    assert after.checked == before.checked
    repository.images = {tag("rhel9.8"): ("s390x",)}
    assert (await resolver.resolve(repository.query(RHEL), fresh=True)).outcome is Outcome.WRONG_ARCHITECTURE


async def test_what_was_not_there_is_soon_looked_for_again(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock
) -> None:
    assert (await resolver.resolve(repository.query(RHEL))).outcome is Outcome.NOT_FOUND
    repository.images = {tag("rhel9.8"): ("amd64",)}
    assert (await resolver.resolve(repository.query(RHEL))).outcome is Outcome.NOT_FOUND
    clock.time += MISSING_FOR
    assert (await resolver.resolve(repository.query(RHEL))).outcome is Outcome.FOUND


async def test_whoever_wants_one_image_at_a_time_shares_one_look(
    repository: ImageRepository, resolver: Resolver
) -> None:
    repository.images = {tag("rhel9.8"): ("amd64",)}
    found = await asyncio.gather(*(resolver.resolve(repository.query(RHEL)) for _ in range(20)))
    assert len(set(found)) == 1
    assert len(repository.requests) == 2  # the index and the image


async def test_who_gives_up_does_not_take_the_others_answer_away(
    repository: ImageRepository, resolver: Resolver
) -> None:
    repository.images = {tag("rhel9.8"): ("amd64",)}
    first, second = (asyncio.create_task(resolver.resolve(repository.query(RHEL))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).outcome is Outcome.FOUND


async def test_an_outage_keeps_what_was_known_and_leaves_the_registry_in_peace(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock
) -> None:
    repository.images = {tag("rhel9"): ("amd64",)}
    known = await resolver.resolve(repository.query(RHEL))
    repository.status, repository.requests[:] = 503, []
    clock.time += FOUND_FOR
    found = await resolver.resolve(repository.query(RHEL))
    assert (found.outcome, found.stale) == (Outcome.FOUND, True)
    assert (found.digest, found.tag, found.checked) == (known.digest, known.tag, known.checked)
    assert [each.outcome for each in found.tried] == [Outcome.UNREACHABLE, Outcome.UNREACHABLE]
    assert "answers 503" in found.tried[0].text
    assert "the next request is in" in found.tried[1].text
    assert len(repository.requests) == 1


async def test_pauses_grow_and_end_with_the_outage(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock
) -> None:
    repository.images = {tag("ubuntu22.04", kernel=UBUNTU.kernel): ("amd64",)}
    repository.status = 500
    times = []
    while clock.time < 4000:
        before = len(repository.requests)
        assert (await resolver.resolve(repository.query(UBUNTU))).outcome is Outcome.UNREACHABLE
        if len(repository.requests) > before:
            times.append(clock.time)
        clock.time += 1
    pauses = [after - before for before, after in pairwise(times)]
    assert 5 <= pauses[0] <= 11
    assert pauses[:4] == sorted(pauses[:4])
    assert max(pauses) <= LONGEST_PAUSE + 1
    assert len(times) < 15
    repository.status = 200
    clock.time += LONGEST_PAUSE
    assert (await resolver.resolve(repository.query(UBUNTU))).stale is False


async def test_fresh_asks_even_during_a_pause(repository: ImageRepository, resolver: Resolver) -> None:
    repository.images = {tag("rhel9.8"): ("amd64",)}
    repository.status = 500
    assert (await resolver.resolve(repository.query(RHEL))).outcome is Outcome.UNREACHABLE
    repository.status = 200
    assert (await resolver.resolve(repository.query(RHEL))).outcome is Outcome.UNREACHABLE
    assert (await resolver.resolve(repository.query(RHEL), fresh=True)).outcome is Outcome.FOUND


async def test_a_registry_that_names_a_pause_gets_it(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock
) -> None:
    repository.status, repository.retry_after = 429, "300"
    await resolver.resolve(repository.query(UBUNTU))
    clock.time += 299
    await resolver.resolve(repository.query(UBUNTU))
    assert len(repository.requests) == 1
    clock.time += 1
    await resolver.resolve(repository.query(UBUNTU))
    assert len(repository.requests) == 2


@pytest.mark.parametrize("status", [404, 401, 403])
async def test_a_clear_answer_ends_what_was_known(
    repository: ImageRepository, resolver: Resolver, clock: ManualClock, status: int
) -> None:
    repository.images = {tag("ubuntu22.04", kernel=UBUNTU.kernel): ("amd64",)}
    await resolver.resolve(repository.query(UBUNTU))
    for answer in (status, 503):
        clock.time += FOUND_FOR
        repository.status = answer
        assert (await resolver.resolve(repository.query(UBUNTU))).digest == ""
    assert resolver_kept(resolver) == ()


def resolver_kept(resolver: Resolver) -> tuple[CachedImage, ...]:
    assert isinstance(resolver, RegistryResolver)
    return resolver.cached_images()


async def test_what_was_known_outlives_the_process(repository: ImageRepository, clock: ManualClock) -> None:
    repository.images = {tag("rhel9"): ("amd64",)}
    async with resolving(clock) as before:
        known = await before.resolve(repository.query(RHEL))
        kept = msgspec.json.encode(before.cached_images())
    repository.status = 503
    async with resolving(clock) as after:
        after.restore(msgspec.json.decode(kept, type=tuple[CachedImage, ...]))
        assert msgspec.json.encode(after.cached_images()) == kept
        found = await after.resolve(repository.query(RHEL))
        assert (found.stale, found.digest, found.tag) == (True, known.digest, known.tag)
        repository.status, repository.images = 200, {}
        assert (await after.resolve(repository.query(RHEL), fresh=True)).outcome is Outcome.NOT_FOUND
        assert after.cached_images() == ()


async def test_a_mirror_answers_for_itself(repository: ImageRepository, resolver: Resolver) -> None:
    repository.images = {tag("ubuntu22.04", kernel=UBUNTU.kernel): ("amd64",)}
    with silent() as other:
        source = ImageSource(repository=f"{other}/nvidia", image="driver", version="580.65.06")
        async with resolving(ManualClock(), seconds=0.1) as hasty:
            query = ImageQuery(source=source, pool=UBUNTU, kind=ImageKind.PRECOMPILED)
            assert (await hasty.resolve(query)).outcome is Outcome.UNREACHABLE
            (mirror,) = list_mirror_sources(source, [f"{repository.host}/copies"])
            found = await hasty.resolve(msgspec.structs.replace(query, source=mirror))
    assert found.reference.startswith(f"{repository.host}/copies/driver:")
    assert found.stale is False


async def test_what_cannot_be_a_name_is_answered_without_asking(
    repository: ImageRepository, resolver: Resolver
) -> None:
    told = await resolver.resolve(repository.query(RHEL, version="not a version"))
    assert told.outcome is Outcome.NOT_FOUND
    assert "its tag 'not a version-" in told.tried[0].text
    told = await resolver.resolve(repository.query(RHEL, kind=ImageKind.PRECOMPILED_BRANCH, version="latest"))
    assert told.tried[0].text == "'latest' has no image of a precompiled-branch"
    half = ImageQuery(source=ImageSource(image="driver", version="1"), pool=RHEL, kind=ImageKind.BUILDER)
    assert "repository must be given too" in (await resolver.resolve(half)).tried[0].text
    assert repository.requests == []


async def test_pull_secrets_that_cannot_be_used_are_a_refusal_and_those_that_cannot_be_read_an_outage(
    repository: ImageRepository, clock: ManualClock
) -> None:
    repository.images = {tag("rhel9.8"): ("amd64",)}
    raised: list[Exception] = []

    async def secrets(names: tuple[str, ...]) -> Keyring:
        assert names == ("pull",)
        if raised:
            raise raised[0]
        return Keyring()

    query = msgspec.structs.replace(repository.query(RHEL), source=repository.source(pull_secrets=("pull",)))
    async with resolving(clock, secrets) as resolver:
        known = await resolver.resolve(query)
        raised.append(ConnectionError("the API server does not answer"))
        found = await resolver.resolve(query, fresh=True)
        assert (found.stale, found.digest) == (True, known.digest)
        raised[0] = CredentialsError("secret tessera-system/pull does not exist")
        found = await resolver.resolve(query, fresh=True)
        assert found.outcome is Outcome.UNAUTHORIZED
        assert "secret tessera-system/pull does not exist" in found.tried[0].text


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real registry with the seeds' images, for one user."""
    folder: Path = tmp_path_factory.mktemp("resolver")
    images = {
        "nvidia/driver:525-5.15.0-69-generic-ubuntu22.04": Image(),
        "nvidia/driver:525.125.06-ubuntu22.04": Image(("amd64", "arm64"), content="sources"),
        "vemporop/nvidia-gpu-driver:525.125.06-5.14.0-284.25.1.el9_2.x86_64-rhcos4.13": Image(content="red hat"),
    }
    with registry(folder / "storage") as running:
        running.fill(folder, images)
    (folder / "htpasswd").write_text(HTPASSWD)
    with registry(folder / "storage", auth={"htpasswd": {"realm": "x", "path": str(folder / "htpasswd")}}) as running:
        yield running.host


def secrets_of(host: str) -> Secrets:
    """Returns a reader of pull secrets that always finds the user of the registry."""

    async def read(names: tuple[str, ...]) -> Keyring:
        del names
        return parse_docker_config(docker_config(host), where="a test")

    return read


async def test_four_ways_to_fail_are_four_outcomes(basic: str) -> None:
    """Against a real registry: 404, 401, no answer in time, and another architecture."""
    source = ImageSource(repository=f"{basic}/nvidia", image="driver", version="525.125.06")
    branch = ImageQuery(source=source, pool=UBUNTU, kind=ImageKind.PRECOMPILED_BRANCH)
    arm = msgspec.structs.replace(branch, pool=msgspec.structs.replace(UBUNTU, architecture="arm64"))
    exact = msgspec.structs.replace(branch, kind=ImageKind.PRECOMPILED)

    async with (
        resolving(ManualClock(), secrets_of(basic)) as resolver,
        resolving(ManualClock(), seconds=0.1) as stranger,
    ):
        assert (await resolver.resolve(branch)).outcome is Outcome.FOUND
        assert (await resolver.resolve(exact)).outcome is Outcome.NOT_FOUND
        assert (await stranger.resolve(branch)).outcome is Outcome.UNAUTHORIZED
        assert (await resolver.resolve(arm)).outcome is Outcome.WRONG_ARCHITECTURE
        with silent() as host:
            elsewhere = msgspec.structs.replace(source, repository=f"{host}/nvidia")
            told = await stranger.resolve(msgspec.structs.replace(branch, source=elsewhere))
        assert told.outcome is Outcome.UNREACHABLE
        assert "did not answer within 0.1 s" in told.tried[0].text


async def test_a_digest_is_looked_at_and_taken_as_it_is(basic: str) -> None:
    source = ImageSource(repository=f"{basic}/nvidia", image="driver", version="525.125.06")
    async with resolving(ManualClock(), secrets_of(basic)) as resolver:
        query = ImageQuery(source=source, pool=UBUNTU, kind=ImageKind.BUILDER)
        by_tag = await resolver.resolve(query)
        pinned = msgspec.structs.replace(source, version=by_tag.digest)
        by_digest = await resolver.resolve(msgspec.structs.replace(query, source=pinned))
    assert by_tag.pinned == by_digest.pinned == f"{basic}/nvidia/driver@{by_tag.digest}"
    assert (by_digest.outcome, by_digest.tag, by_digest.size_bytes) == (Outcome.FOUND, "", by_tag.size_bytes)


async def test_the_articles_snippet_finds_its_image(basic: str) -> None:
    """``usePrecompiled: true``, image, repository and version as Red Hat's article has them."""
    source = ImageSource(repository=f"{basic}/vemporop", image="nvidia-gpu-driver", version="525.125.06")
    pool = PoolKey(
        os_id="rhcos",
        os_version="4.13",
        kernel="5.14.0-284.25.1.el9_2.x86_64",
        architecture="amd64",
        ostree="413.92.202307260246-0",
    )

    async with resolving(ManualClock(), secrets_of(basic)) as resolver:
        found = await resolver.resolve(ImageQuery(source=source, pool=pool, kind=ImageKind.PRECOMPILED))
    assert found.tag == "525.125.06-5.14.0-284.25.1.el9_2.x86_64-rhcos4.13"
