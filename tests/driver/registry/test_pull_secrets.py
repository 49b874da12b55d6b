"""Pull secrets are read from the cluster."""

import base64
from collections.abc import Iterable

import pytest
from tests.driver.registry.servers import PASSWORD, USER, docker_config

from tessera.api.image_reference import parse
from tessera.clock import LoopClock
from tessera.driver.registry.credentials import CredentialsError, PullSecrets
from tessera.kube.client import Client
from tessera.kube.resources import NAMESPACES, SECRETS
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

NAMESPACE = "tessera-system"
ADMIN = ("system:masters", "system:authenticated")


class Cluster:
    """An API server, and a reader of its pull secrets."""

    def __init__(self, groups: Iterable[str] = ADMIN) -> None:
        clock = LoopClock(1_700_000_000.0)
        server = ApiServer(clock)
        self._admin = Client(
            InProcessTransport(server, UserInfo(name="admin", groups=ADMIN)), field_manager="x", clock=clock
        )
        reader = Client(
            InProcessTransport(server, UserInfo(name="reader", groups=tuple(groups))), field_manager="x", clock=clock
        )
        self.secrets = PullSecrets(reader, NAMESPACE)

    async def store(self, name: str, content: bytes, key: str = ".dockerconfigjson") -> None:
        data = {key: base64.b64encode(content).decode()}
        await self._admin.create(SECRETS, {"metadata": {"name": name}, "data": data}, NAMESPACE)

    async def start(self) -> None:
        await self._admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster()
    await made.start()
    return made


async def test_all_secrets_named_count_the_first_before_the_second(cluster: Cluster) -> None:
    await cluster.store("one", docker_config("nvcr.io"))
    await cluster.store("two", docker_config("nvcr.io", username="other", password="x"))
    await cluster.store("three", docker_config("quay.io", username="third", password="x"))
    found = await cluster.secrets(("one", "two", "three"))
    login = found.login(parse("nvcr.io/nvidia/driver:1"))
    assert (login.username, login.password) == (USER, PASSWORD)
    assert found.login(parse("quay.io/a:1")).username == "third"
    assert len(await cluster.secrets(())) == 0


@pytest.mark.parametrize(
    ("key", "content", "words"),
    [
        (".dockerconfigjson", b"hunter2", r"secret tessera-system/pull is no JSON"),
        (".dockercfg", b"{}", r"has no \.dockerconfigjson; its type must be kubernetes\.io/dockerconfigjson"),
    ],
)
async def test_a_secret_of_another_kind_is_named(cluster: Cluster, key: str, content: bytes, words: str) -> None:
    await cluster.store("pull", content, key)
    with pytest.raises(CredentialsError, match=words) as told:
        await cluster.secrets(("pull",))
    assert "hunter2" not in str(told.value)


async def test_a_secret_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(CredentialsError, match=r"secret tessera-system/pull does not exist.*make it.*take it off"):
        await cluster.secrets(("pull",))


async def test_a_secret_that_may_not_be_read_is_named() -> None:
    stranger = Cluster(groups=("system:authenticated",))
    await stranger.start()
    with pytest.raises(
        CredentialsError,
        match=r"secret tessera-system/pull may not be read.*tessera install --pull-secret pull",
    ):
        await stranger.secrets(("pull",))
