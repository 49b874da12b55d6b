"""Credentials by repository, as image pull secrets have them."""

import base64
import json
from pathlib import Path

import pytest

from tessera.api.image_reference import parse
from tessera.driver.registry.credentials import (
    ANONYMOUS,
    CredentialsError,
    Keyring,
    default_docker_config,
    parse_docker_config,
    read_docker_config,
)


def keyring(*keys: str) -> Keyring:
    """One user for each key, called like it."""
    return parse_docker_config(
        json.dumps({"auths": {key: {"username": key, "password": "secret"} for key in keys}}).encode(), where="a test"
    )


@pytest.mark.parametrize(
    ("keys", "image", "wanted"),
    [
        (["nvcr.io"], "nvcr.io/nvidia/driver:1", "nvcr.io"),
        (["https://nvcr.io"], "nvcr.io/nvidia/driver:1", "https://nvcr.io"),
        (["nvcr.io"], "quay.io/nvidia/driver:1", ""),
        (["https://index.docker.io/v1/"], "ubuntu", "https://index.docker.io/v1/"),
        (["docker.io"], "docker.io/fifofonix/driver:1", "docker.io"),
        (["quay.io", "quay.io/vemporop"], "quay.io/vemporop/driver:1", "quay.io/vemporop"),
        (["quay.io", "quay.io/vemporop"], "quay.io/vemporops/driver:1", "quay.io"),
        (["quay.io/a", "quay.io/a/b"], "quay.io/a/b/c:1", "quay.io/a/b"),
        (["r.local:5000"], "r.local:5000/a:1", "r.local:5000"),
        (["r.local"], "r.local:5000/a:1", ""),
        (["*.azurecr.io"], "mine.azurecr.io/a:1", "*.azurecr.io"),
        (["*.azurecr.io"], "a.b.azurecr.io/a:1", ""),
        (["*.azurecr.io", "mine.azurecr.io"], "mine.azurecr.io/a:1", "mine.azurecr.io"),
    ],
)
def test_the_longest_match_counts(keys: list[str], image: str, wanted: str) -> None:
    assert keyring(*keys).login(parse(image)).username == wanted


def test_auth_is_user_and_password_in_one() -> None:
    encoded = base64.b64encode(b"$oauthtoken:key:with:colons").decode()
    found = parse_docker_config(json.dumps({"auths": {"nvcr.io": {"auth": encoded}}}).encode(), where="a test")
    login = found.login(parse("nvcr.io/a:1"))
    assert (login.username, login.password) == ("$oauthtoken", "key:with:colons")
    assert login.basic == f"Basic {encoded}"


def test_of_two_secrets_for_one_registry_the_first_counts() -> None:
    first, second = keyring("quay.io"), keyring("https://quay.io", "nvcr.io")
    both = first + second
    assert both.login(parse("quay.io/a:1")).username == "quay.io"
    assert both.login(parse("nvcr.io/a:1")).username == "nvcr.io"


def test_without_credentials_one_is_nobody() -> None:
    assert Keyring().login(parse("nvcr.io/a:1")) is ANONYMOUS
    assert ANONYMOUS.basic == ""


def test_a_login_is_never_shown() -> None:
    login = keyring("nvcr.io").login(parse("nvcr.io/a:1"))
    assert "secret" not in f"{login} {login!r} {[login]}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hunter2", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b'["hunter2"]', "auths is no object"),
        (b'{"auths": ["hunter2"]}', "auths is no object"),
        (b'{"auths": {"nvcr.io": "hunter2"}}', "auths['nvcr.io'] is no object of texts"),
        (b'{"auths": {"nvcr.io": {"password": ["hunter2"]}}}', "is no object of texts"),
        (b'{"auths": {"nvcr.io": {"auth": "hunter2!"}}}', "auth is not base64"),
        (b'{"auths": {"nvcr.io": {"auth": "aHVudGVyMg=="}}}', "not base64 of user:password"),
        (b" " * (1 << 21), "is too long: at most 1,048,576 bytes are allowed"),
    ],
)
def test_what_is_none_is_told_without_what_stands_there(content: bytes, words: str) -> None:
    with pytest.raises(CredentialsError) as told:
        parse_docker_config(content, where="secret tessera-system/pull")
    assert words in str(told.value)
    assert str(told.value).startswith("secret tessera-system/pull")
    assert "hunter2" not in str(told.value)
    assert told.value.__cause__ is None


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"none\.json: No such file"):
        read_docker_config(tmp_path / "none.json")


def test_the_file_that_logins_leave_is_found(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert default_docker_config(home) is None
    (tmp_path / ".docker").mkdir()
    docker = tmp_path / ".docker" / "config.json"
    docker.write_text("{}")
    assert default_docker_config(home) == docker
    (tmp_path / "containers").mkdir()
    podman = tmp_path / "containers" / "auth.json"
    podman.write_text("{}")
    assert default_docker_config({**home, "XDG_RUNTIME_DIR": str(tmp_path)}) == podman
    assert len(read_docker_config(podman)) == 0
