"""Copies between two real registries, by skopeo itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.driver.registry.programs import registry, tool
from tests.driver.registry.servers import HTPASSWD, PASSWORD, docker_config, silent
from tests.kube.certificates import Authority

from tessera.api.image_reference import parse
from tessera.clock import SystemClock
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.copying import (
    CopyError,
    ImageCopy,
    Skopeo,
    TargetState,
    read_target_state,
    required_copy,
    run_skopeo,
    skopeo_path,
)
from tessera.driver.registry.credentials import parse_docker_config
from tessera.driver.registry.wire import RegistryHttp, RegistryUnreachable, Trust


@pytest.fixture(autouse=True)
def skopeo_in_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(tool("skopeo")).parent), prepend=":")


class Target:
    """A registry of a site: TLS of its own authority, and a password."""

    def __init__(self, host: str, folder: Path, authority: str) -> None:
        self.host = host
        self.config = docker_config(host)
        self.keys = parse_docker_config(self.config, where="a test")
        self.authority = folder / "authority.pem"
        self.authority.write_text(authority)
        self.authfile = folder / "auth.json"
        self.authfile.write_bytes(self.config)

    def skopeo(self, source: str) -> Skopeo:
        return Skopeo(authfile=str(self.authfile), authority=str(self.authority), plain=(source,))

    def client(self, source: str) -> RegistryClient:
        trust = Trust(authorities=self.authority.read_text(), plain=(source,))
        return RegistryClient(RegistryHttp(trust, environment={}), SystemClock())


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    authority = Authority()
    pair = authority.issue("127.0.0.1")
    (tmp_path / "tls.pem").write_bytes(pair.pem)
    (tmp_path / "tls.key").write_bytes(pair.key)
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    tls = {"certificate": str(tmp_path / "tls.pem"), "key": str(tmp_path / "tls.key")}
    auth = {"htpasswd": {"realm": "site", "path": str(tmp_path / "htpasswd")}}
    with registry(tmp_path / "storage", http={"tls": tls}, auth=auth) as running:
        yield Target(running.host, tmp_path, authority.pem.decode())


def copy_of(source: str, target: str, tag: str, digest: str, top: str, *, whole: bool = False) -> ImageCopy:
    return ImageCopy(
        source=parse(f"{source}/nvidia/driver:{tag}"),
        target=parse(f"{target}/copies/driver:{tag}"),
        digest=top if whole else digest,
        top=top,
        architectures=("amd64",),
        whole=whole,
        size_bytes=1,
    )


async def test_an_image_comes_over_once_and_is_known_again(plain: str, target: Target) -> None:
    """One architecture first, then, since another needs the same tag, the whole index."""
    client = target.client(plain)
    try:
        keys = target.keys
        amd = await client.find_image(parse(f"{plain}/nvidia/driver:both"), "amd64", keys)
        arm = await client.find_image(parse(f"{plain}/nvidia/driver:both"), "arm64", keys)
        copy = copy_of(plain, target.host, "both", amd.digest, amd.top)
        assert await read_target_state(client, copy, keys) is TargetState.NOTHING
        await run_skopeo(target.skopeo(plain), copy)
        assert await read_target_state(client, copy, keys) is TargetState.SAME
        other = copy_of(plain, target.host, "both", arm.digest, arm.top)
        assert await read_target_state(client, other, keys) is TargetState.OTHER
        whole = required_copy(other, TargetState.OTHER_ARCHITECTURES)
        assert whole is not None
        await run_skopeo(target.skopeo(plain), whole)
        assert await read_target_state(client, whole, keys) is TargetState.SAME
        assert (await client.find_image(whole.target, "arm64", keys)).digest == arm.digest
        assert (await client.find_image(whole.target, "amd64", keys)).digest == amd.digest
    finally:
        await client.close()


async def test_what_skopeo_says_of_a_failure_is_told_and_no_password(plain: str, target: Target) -> None:
    target.authfile.write_bytes(docker_config(target.host, username="puller", password="wrong-one"))
    client = target.client(plain)
    found = await client.find_image(parse(f"{plain}/nvidia/driver:arm"), "arm64", target.keys)
    await client.close()
    copy = copy_of(plain, target.host, "arm", found.digest, found.top)
    with pytest.raises(CopyError, match=r"skopeo has not copied .*(authentication required|unauthorized)") as told:
        await run_skopeo(target.skopeo(plain), copy)
    assert "wrong-one" not in str(told.value)
    assert PASSWORD not in str(told.value)


async def test_a_target_that_does_not_answer_is_unreachable() -> None:
    hasty = RegistryClient(RegistryHttp(Trust(plain=("*",)), total=0.1, environment={}), SystemClock())
    try:
        with silent() as host, pytest.raises(RegistryUnreachable):
            await read_target_state(
                hasty, copy_of("a.test", host, "x", "sha256:1", "sha256:2"), parse_docker_config(b"{}", where="")
            )
    finally:
        await hasty.close()


def test_a_machine_without_skopeo_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CopyError, match="install the package skopeo; --dry-run shows the commands"):
        skopeo_path()
