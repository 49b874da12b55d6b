"""Kubeconfig files as kubectl reads them, and a pod's own identity."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.conftest import ImpatientClock

from tessera.cli.base.kubeconfig import load_config
from tessera.kube.cluster_config import ClusterConfig, ClusterConfigError
from tessera.kube.credentials import Credential


def kubeconfig(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    return path


def cluster(name: str, server: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "cluster": {"server": server, **more}}


def user(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "user": more}


def context(name: str, of: str, by: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "context": {"cluster": of, "user": by, **more}}


def load(tmp_path: Path, env: Mapping[str, str] | None = None, **arguments: Any) -> ClusterConfig:
    return load_config(
        clock=ImpatientClock(), environment=env or {}, home=tmp_path, service_account=tmp_path / "sa", **arguments
    )


def simple(tmp_path: Path, **of_user: Any) -> Path:
    return kubeconfig(
        tmp_path / ".kube" / "config",
        clusters=[cluster("c", "https://one:6443/")],
        users=[user("u", **of_user)],
        contexts=[context("x", "c", "u", namespace="team")],
        **{"current-context": "x"},
    )


async def test_a_user_without_a_home_finds_the_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "sa"
    account.mkdir()
    for name in ("ca.crt", "namespace", "token"):
        (account / name).write_text("text")
    monkeypatch.setattr(Path, "home", classmethod(_no_home))
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    config = load_config(clock=ImpatientClock(), environment=env, service_account=account)
    assert config.server == "https://10.0.0.1:443"


def _no_home(_cls: type[Path]) -> Path:
    raise RuntimeError("Could not determine home directory.")


async def test_the_home_file_is_read_when_nothing_else_is_named(tmp_path: Path) -> None:
    simple(tmp_path, token="secret")
    config = load(tmp_path)
    assert (config.server, config.namespace, config.context) == ("https://one:6443", "team", "x")
    assert await config.credentials.current() == Credential(authorization="Bearer secret")


async def test_files_of_the_list_are_merged_and_the_first_to_name_a_thing_wins(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "1", clusters=[cluster("c", "https://first")], contexts=[context("x", "c", "u")])
    second = kubeconfig(
        tmp_path / "2",
        clusters=[cluster("c", "https://second"), cluster("d", "https://d")],
        users=[user("u", token="of-second")],
        contexts=[context("x", "d"), context("y", "d")],
        **{"current-context": "x"},
    )
    env = {"KUBECONFIG": os.pathsep.join([str(first), str(tmp_path / "missing"), str(second)])}
    config = load(tmp_path, env)
    assert config.server == "https://first"
    assert (await config.credentials.current()).authorization == "Bearer of-second"
    assert load(tmp_path, env, context="y").server == "https://d"


def test_an_explicit_file_is_taken_alone(tmp_path: Path) -> None:
    simple(tmp_path)
    other = kubeconfig(tmp_path / "other", clusters=[cluster("c", "https://other")], contexts=[context("z", "c")])
    assert load(tmp_path, kubeconfig=str(other), context="z").server == "https://other"
    with pytest.raises(ClusterConfigError, match="context 'x' does not exist; there are: z"):
        load(tmp_path, kubeconfig=str(other), context="x")
    with pytest.raises(ClusterConfigError, match=r"kubeconfig .*nowhere: No such file"):
        load(tmp_path, kubeconfig=str(tmp_path / "nowhere"))


async def test_paths_count_from_their_file_and_data_wins_over_files(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    data = base64.b64encode(b"DATA").decode()
    path = kubeconfig(
        folder / "config",
        clusters=[cluster("c", "https://c", **{"certificate-authority": "ca.pem"})],
        users=[user("u", **{"client-certificate": "x.pem", "client-certificate-data": data, "client-key": "key.pem"})],
        contexts=[context("x", "c", "u")],
        **{"current-context": "x"},
    )
    (folder / "ca.pem").write_bytes(b"CA")
    (folder / "key.pem").write_bytes(b"KEY")
    config = load(tmp_path, kubeconfig=str(path))
    assert config.ca == b"CA"
    assert await config.credentials.current() == Credential(certificate=b"DATA", key=b"KEY")


async def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    path = simple(tmp_path, token="fixed", tokenFile="token")
    (path.parent / "token").write_text("renewed")
    assert (await load(tmp_path).credentials.current()).authorization == "Bearer renewed"


async def test_name_and_password_make_a_basic_header(tmp_path: Path) -> None:
    simple(tmp_path, username="me", password="pw")
    assert (await load(tmp_path).credentials.current()).authorization == "Basic bWU6cHc="


def test_options_of_a_cluster(tmp_path: Path) -> None:
    more = {"insecure-skip-tls-verify": True, "tls-server-name": "kube", "proxy-url": "http://p:1"}
    kubeconfig(
        tmp_path / ".kube" / "config",
        clusters=[cluster("c", "https://c", **more)],
        contexts=[context("x", "c")],
        **{"current-context": "x"},
    )
    config = load(tmp_path)
    assert (config.verify, config.server_name, config.proxy, config.namespace) == (
        False,
        "kube",
        "http://p:1",
        "default",
    )


async def test_a_pod_without_a_kubeconfig_uses_its_service_account(tmp_path: Path) -> None:
    account = tmp_path / "sa"
    account.mkdir()
    (account / "ca.crt").write_bytes(b"CA")
    (account / "namespace").write_text("ns\n")
    (account / "token").write_text("t1\n")
    config = load(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert (config.server, config.namespace, config.ca) == ("https://[fd00::1]:443", "ns", b"CA")
    assert (await config.credentials.current()).authorization == "Bearer t1"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({}, "no cluster is configured"),
        ({"clusters": [cluster("c", "https://c")]}, "no current context; there is none to choose"),
        ({"contexts": [context("x", "c")], "current-context": "x"}, "context 'x': cluster 'c' does not exist"),
        (
            {"clusters": [cluster("c", "")], "contexts": [context("x", "c")], "current-context": "x"},
            "server is not set",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, content: dict[str, Any], error: str) -> None:
    kubeconfig(tmp_path / ".kube" / "config", **content)
    with pytest.raises(ClusterConfigError, match=error):
        load(tmp_path)


@pytest.mark.parametrize(
    ("of_user", "error"),
    [
        ({"client-key": "missing.pem"}, r"user 'u': client-key .*missing.pem: No such file"),
        ({"client-key-data": "not base64!"}, "user 'u': client-key-data is not base64"),
        ({"auth-provider": {"name": "gcp"}}, "'auth-provider' is not supported"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}, "exec.command is not set"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, "v1alpha1' is not spoken"),
    ],
)
def test_users_that_cannot_be_used_are_named(tmp_path: Path, of_user: dict[str, Any], error: str) -> None:
    simple(tmp_path, **of_user)
    with pytest.raises((ClusterConfigError, ConnectionError), match=error):
        load(tmp_path)


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text("[1, 2")
    with pytest.raises(ClusterConfigError, match="is not YAML"):
        load(tmp_path, kubeconfig=str(path))
    path.write_text("[" * 5000)
    with pytest.raises(ClusterConfigError, match="is not YAML"):
        load(tmp_path, kubeconfig=str(path))
    path.write_text("[1, 2]")
    with pytest.raises(ClusterConfigError, match="a mapping with clusters"):
        load(tmp_path, kubeconfig=str(path))
