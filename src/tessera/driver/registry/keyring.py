"""Credentials by registry, in the form of Kubernetes' image pull secrets and of ``docker login``.

The format is that of ``kubernetes.io/dockerconfigjson``. A key names a host, with an optional port, or a host and the
beginning of a path; ``*`` may stand for one label of the host. The longest path that matches wins, as in kubelet. No
text for users contains a secret.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from tessera.driver.registry.reference import DOCKER_HUB, Reference
from tessera.limits.drivers import PULL_SECRET

_HUB_KEYS = ("index.docker.io", "registry-1.docker.io", "docker.io", "registry.hub.docker.com")


class CredentialsError(ValueError):
    """Credentials cannot be read; the text names their place and never their content."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials for one registry; all parts are secrets.

    Attributes:
        username: user for Basic authentication, and for a token server.
        password: password for the same.
        refresh: an OAuth2 refresh token for the token server, ``identitytoken``.
        bearer: a token that is sent unchanged, ``registrytoken``.
    """

    username: str = ""
    password: str = ""
    refresh: str = ""
    bearer: str = ""

    def __repr__(self) -> str:
        return "Login(…)"

    @property
    def basic(self) -> str:
        """The Authorization header for Basic; empty without a user name."""
        if not self.username:
            return ""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


#: The value for requests without credentials.
ANONYMOUS = Login()


class KeyringEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials for the repositories below ``path`` of the hosts that match ``host``."""

    host: str
    path: str
    login: Login


class Keyring:
    """Credentials by repository.

    Args:
        entries: in any order; if two match equally well, the first one wins.
    """

    def __init__(self, entries: Iterable[KeyringEntry] = ()) -> None:
        # Long paths first; full hosts before patterns; else in the given sequence.
        self._entries = sorted(entries, key=lambda each: (-len(each.path), "*" in each.host))

    def __add__(self, other: "Keyring") -> "Keyring":
        return Keyring([*self._entries, *other._entries])

    def __len__(self) -> int:
        return len(self._entries)

    def login(self, reference: Reference) -> Login:
        """The credentials for a repository; :data:`ANONYMOUS` if there are none."""
        return next((each.login for each in self._entries if _fits(each, reference)), ANONYMOUS)


def parse_docker_config(content: bytes, *, where: str) -> Keyring:
    """The credentials in a ``.dockerconfigjson``.

    Args:
        content: the document.
        where: the place for error texts: ``secret pull-secret``, a file's name.

    Raises:
        CredentialsError: the document is not a ``.dockerconfigjson``.
    """
    if len(content) > PULL_SECRET:
        raise CredentialsError(
            f"{where}: is too long: {PULL_SECRET} are allowed; leave out registries that nodes do not use"
        )
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The text must not contain any part of the document, since the document contains passwords.
        raise CredentialsError(f'{where} is no JSON of the form {{"auths": {{"registry": {{"auth": …}}}}}}') from None
    auths = document.get("auths", {}) if isinstance(document, dict) else None
    if not isinstance(auths, dict):
        raise CredentialsError(f"{where}: auths is no object with registries as its keys")
    return Keyring(_entry(key, body, where) for key, body in auths.items())


def read_docker_config(path: Path) -> Keyring:
    """The credentials in a file.

    Raises:
        CredentialsError: the file cannot be read, or is not a ``.dockerconfigjson``.
    """
    try:
        with path.open("rb") as file:
            content = file.read(PULL_SECRET + 1)
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror or 'cannot be read'}") from error
    return parse_docker_config(content, where=str(path))


def default_docker_config(environment: Mapping[str, str]) -> Path | None:
    """The file that ``skopeo login`` or ``docker login`` wrote; None if there is none."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    home = environment.get("HOME", "")
    docker = environment.get("DOCKER_CONFIG", "") or (f"{home}/.docker" if home else "")
    places = (
        environment.get("REGISTRY_AUTH_FILE", ""),
        f"{runtime}/containers/auth.json" if runtime else "",
        f"{docker}/config.json" if docker else "",
    )
    return next((Path(each) for each in places if each and Path(each).is_file()), None)


def _entry(key: str, body: Any, where: str) -> KeyringEntry:
    host, _, path = key.removeprefix("https://").removeprefix("http://").partition("/")
    path = path.strip("/")
    if path in ("v1", "v2"):  # Docker's own keys have the API's version after the host
        path = ""
    return KeyringEntry(host=_host(host), path=path, login=_login(body, f"{where}: auths[{key!r}]"))


def _login(body: Any, where: str) -> Login:
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise CredentialsError(f"{where} is no object of texts")
    username, password = body.get("username", ""), body.get("password", "")
    if body.get("auth"):
        try:
            decoded = base64.b64decode(body["auth"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise CredentialsError(f"{where}: auth is not base64 of user:password") from None
        username, colon, password = decoded.partition(":")
        if not colon:
            raise CredentialsError(f"{where}: auth is not base64 of user:password")
    return Login(
        username=username,
        password=password.rstrip("\x00"),
        refresh=body.get("identitytoken", ""),
        bearer=body.get("registrytoken", ""),
    )


def _host(host: str) -> str:
    return DOCKER_HUB if host.lower() in _HUB_KEYS else host.lower()


def _fits(entry: KeyringEntry, reference: Reference) -> bool:
    if entry.path and f"{reference.path}/".startswith(f"{entry.path}/") is False:
        return False
    name, _, port = entry.host.partition(":")
    asked, _, asked_port = reference.registry.partition(":")
    labels, wanted = name.split("."), asked.split(".")
    return port == asked_port and len(labels) == len(wanted) and all(map(fnmatchcase, wanted, labels))
