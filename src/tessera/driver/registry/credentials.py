"""Credentials and certificate authorities for registries.

Credentials have the form of Kubernetes' image pull secrets and of ``docker login``
(``kubernetes.io/dockerconfigjson``). A key names a host, with an optional port, or a host and the beginning of a path;
``*`` may stand for one label of the host. The longest path that matches wins, as in kubelet. Pull secrets are few and
rarely needed, so they are read one by one when a registry is to be asked: a watch would need the right to list all
Secrets of the namespace. No text for users contains a secret.

``tessera install`` reads the file of certificate authorities before it changes a cluster, and the controller reads it
when it starts. Both refuse the same files with the same messages. Only the certificates of a file are used. The text
between them may be in any language, and a private key in the file is not read.
"""

import base64
import binascii
import shlex
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.image_reference import DOCKER_HUB, HUB_ALIASES, Reference
from tessera.driver.limits import PULL_SECRET, REGISTRY_AUTHORITIES
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import SECRETS
from tessera.nesting import decode_json


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
    def text(self) -> str:
        """For messages: ``with the credentials given``, without any part of them."""
        return "without credentials" if self == ANONYMOUS else "with the credentials given"

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
        document = decode_json(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
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
        return parse_docker_config(_read_bounded(path, PULL_SECRET), where=str(path))
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror or 'cannot be read'}") from error


def _read_bounded(path: Path, limit: int) -> bytes:
    """A file's first bytes, one more than is allowed."""
    with path.open("rb") as file:
        return file.read(limit + 1)


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
    return DOCKER_HUB if host.lower() in HUB_ALIASES else host.lower()


def _fits(entry: KeyringEntry, reference: Reference) -> bool:
    if entry.path and f"{reference.path}/".startswith(f"{entry.path}/") is False:
        return False
    name, _, port = entry.host.partition(":")
    asked, _, asked_port = reference.registry.partition(":")
    labels, wanted = name.split("."), asked.split(".")
    return port == asked_port and len(labels) == len(wanted) and all(map(fnmatchcase, wanted, labels))


#: The key of a Secret of type kubernetes.io/dockerconfigjson.
_DOCKER_CONFIG = ".dockerconfigjson"


class PullSecrets:
    """Reads pull secrets of one namespace; an instance is the ``secrets`` of a resolver.

    Args:
        client: reads the Secrets.
        namespace: their namespace.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def __call__(self, names: tuple[str, ...]) -> Keyring:
        """All credentials in the Secrets with these names, in the sequence of the names.

        Raises:
            CredentialsError: a Secret does not exist, may not be read, or has another type.
            ConnectionError: the API server does not answer.
        """
        found = Keyring()
        for name in names:
            found = found + await self._one(name)
        return found

    async def _one(self, name: str) -> Keyring:
        where = f"secret {self._namespace}/{name}"
        try:
            secret = await self._client.get(SECRETS, name, self._namespace)
        except NotFound:
            raise CredentialsError(f"{where} does not exist; make it, or take it off imagePullSecrets") from None
        except Forbidden as error:
            grant = f"grant it by tessera install --pull-secret {shlex.quote(name)}, repeating its other options"
            raise CredentialsError(f"{where} may not be read: {grant}, or see docs/protections.md: {error}") from error
        except ApiError as error:
            raise ConnectionError(f"{where}: {error}") from error
        content = secret.data.get(_DOCKER_CONFIG, b"")
        if not content:
            raise CredentialsError(f"{where} has no {_DOCKER_CONFIG}; its type must be kubernetes.io/dockerconfigjson")
        return parse_docker_config(content, where=where)


_BEGIN = b"-----BEGIN CERTIFICATE-----"


class AuthoritiesError(ValueError):
    """A file contains no authorities to trust; the text names the file, the mistake and what to do."""


def read_authorities(file: Path) -> str:
    """The certificates of a file, in the file's sequence, as PEM in ASCII.

    Raises:
        AuthoritiesError: the file has no certificate, has one that cannot be read, or is too large.
    """
    try:
        data = _read_bounded(file, REGISTRY_AUTHORITIES)
    except OSError as error:
        raise AuthoritiesError(
            f"{file} cannot be read ({(error.strerror or str(error)).lower()}); name a file of certificates in PEM"
        ) from error
    return parse_authorities(data, str(file))


def parse_authorities(data: bytes, name: str) -> str:
    """As :func:`read_authorities`, of a text; ``name`` stands for the file in errors."""
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificates

    if len(data) > REGISTRY_AUTHORITIES:
        raise AuthoritiesError(
            f"{name} is too long: {REGISTRY_AUTHORITIES} are allowed; name the authorities of your registries only,"
            " the system's are trusted anyway"
        )
    if _BEGIN not in data:
        raise AuthoritiesError(
            f"{name} has no certificate in PEM ({_BEGIN.decode()}); one in DER becomes one by:"
            f" openssl x509 -inform der -in {name} -out ca.crt"
        )
    try:
        found = load_pem_x509_certificates(data)
    except ValueError as error:
        raise AuthoritiesError(
            f"{name} has a certificate that is damaged or not whole; get it from the authority again"
        ) from error
    return "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in found)
