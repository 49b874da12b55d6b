"""Credentials for an API server, and their renewal.

A transport asks for the :class:`Credential` before each request and reports a 401 to it; the credentials are then
renewed where that is possible. Bound service account tokens change in their file; exec plugins report when theirs
expire.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tessera.clock import Clock, parse_rfc3339

#: How long the content of a token file is used before it is read again, seconds; as in client-go.
TOKEN_PERIOD = 60.0

#: How long an exec plugin may take, seconds.
_EXEC_TIMEOUT = 60.0

#: Supported versions of client.authentication.k8s.io.
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class CredentialError(ConnectionError):
    """Credentials are not available; the text has the reason and the remedy.

    A ``ConnectionError``, since no request was sent and a later try may find the plugin or the file in order.
    """


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The proofs of an identity; any part may be missing.

    Attributes:
        authorization: the whole Authorization header.
        certificate: client certificate, PEM.
        key: its private key, PEM.
    """

    authorization: str = ""
    certificate: bytes = b""
    key: bytes = b""


#: No proof at all: for a request that brings the header of another user.
NOBODY = Credential()


class Credentials(Protocol):
    """A source of credentials."""

    async def current(self) -> Credential:
        """The credential for the next request.

        Raises:
            CredentialError: no credential is available.
        """
        ...

    def reject(self, credential: Credential) -> bool:
        """Handles a 401 for this credential; True if :meth:`current` may now give another."""
        ...


class StaticCredentials:
    """Never renewed: a token or a client certificate written in a kubeconfig."""

    def __init__(self, credential: Credential | None = None) -> None:
        self._credential = credential or Credential()

    async def current(self) -> Credential:
        """The only credential."""
        return self._credential

    def reject(self, credential: Credential) -> bool:  # noqa: ARG002 - the protocol's signature
        """Returns False: there is no other credential."""
        return False


class TokenFile:
    """A bearer token in a file that another program renews, as kubelet does for service accounts.

    Args:
        path: the file.
        clock: measures the time until the file is read again.
        base: the client certificate that goes with it, if any.
    """

    def __init__(self, path: Path, *, clock: Clock, base: Credential | None = None) -> None:
        self._path = path
        self._clock = clock
        self._base = base or Credential()
        self._credential: Credential | None = None
        self._read_at = float("-inf")

    async def current(self) -> Credential:
        """The token read within the last minute; the last good one where the file cannot be read now.

        Raises:
            CredentialError: no token could ever be read.
        """
        if self._credential is None or self._clock.monotonic() >= self._read_at + TOKEN_PERIOD:
            self._credential = self._read()
            self._read_at = self._clock.monotonic()
        return self._credential

    def reject(self, credential: Credential) -> bool:
        """Reads the file again; True if it holds another token."""
        self._read_at = float("-inf")
        return self._read() != credential

    def _read(self) -> Credential:
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            if self._credential is not None:
                return self._credential
            raise CredentialError(f"token file {self._path}: {error.strerror}") from error
        if not token:
            raise CredentialError(f"token file {self._path} is empty")
        return msgspec.structs.replace(self._base, authorization=f"Bearer {token}")


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """The ``exec`` part of a kubeconfig user.

    Attributes:
        command: found on PATH, or a path.
        args: its arguments.
        env: variables added to ours.
        api_version: of client.authentication.k8s.io that it speaks.
        install_hint: advice for users without the command.
        cluster: given to the plugin if it wants to know (``provideClusterInfo``).
        interactive: ``Never``, ``IfAvailable`` or ``Always``; a terminal is never offered.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    api_version: str = _EXEC_VERSIONS[0]
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    interactive: str = "IfAvailable"


class ExecCredentials:
    """Credentials from an exec plugin, kept until they expire or are rejected.

    Args:
        plugin: the command to run.
        environment: the variables it inherits.
        clock: compared with the expiry.
    """

    def __init__(self, plugin: ExecPlugin, *, environment: Mapping[str, str], clock: Clock) -> None:
        if plugin.api_version not in _EXEC_VERSIONS:
            raise CredentialError(
                f"exec plugin {plugin.command}: apiVersion {plugin.api_version!r} is not spoken,"
                f" only {' and '.join(_EXEC_VERSIONS)}"
            )
        if plugin.interactive == "Always":
            raise CredentialError(
                f"exec plugin {plugin.command} needs a terminal (interactiveMode Always); none is given"
            )
        self._plugin = plugin
        self._environment = environment
        self._clock = clock
        self._credential: Credential | None = None
        self._expires = float("inf")
        self._running = asyncio.Lock()

    async def current(self) -> Credential:
        """The cached credential, or a new one from the plugin; run once for any number of waiting requests.

        Raises:
            CredentialError: the plugin is missing, failed, or answered something else.
        """
        async with self._running:
            if self._credential is None or self._clock.now() >= self._expires:
                self._credential, self._expires = _read_answer(self._plugin, await self._run())
            return self._credential

    def reject(self, credential: Credential) -> bool:
        """Forgets the credential, if it is still the cached one."""
        if self._credential == credential:
            self._credential = None
        return True

    async def _run(self) -> bytes:
        plugin = self._plugin
        environment = {**self._environment, **plugin.env, "KUBERNETES_EXEC_INFO": _exec_info(plugin)}
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"\n{plugin.install_hint}" if plugin.install_hint else ""
            raise CredentialError(f"exec plugin {plugin.command}: {error.strerror}{hint}") from error
        try:
            async with asyncio.timeout(_EXEC_TIMEOUT):
                out, err = await process.communicate()
        except TimeoutError:
            raise CredentialError(f"exec plugin {plugin.command} did not end within {_EXEC_TIMEOUT:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            message = err.decode(errors="replace").strip() or "nothing"
            raise CredentialError(f"exec plugin {plugin.command} failed with exit code {process.returncode}: {message}")
        return out


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecResult(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


def _exec_info(plugin: ExecPlugin) -> str:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    return msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


def _read_answer(plugin: ExecPlugin, out: bytes) -> tuple[Credential, float]:
    try:
        answer = msgspec.json.decode(out, type=_ExecResult)
        status = answer.status or _ExecStatus()
        expires = parse_rfc3339(status.expiration_timestamp) if status.expiration_timestamp else float("inf")
    except (msgspec.DecodeError, ValueError) as error:
        raise CredentialError(f"exec plugin {plugin.command} printed no ExecCredential: {error}") from error
    if answer.api_version != plugin.api_version:
        raise CredentialError(
            f"exec plugin {plugin.command} answered in apiVersion {answer.api_version!r};"
            f" the kubeconfig says {plugin.api_version!r}"
        )
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise CredentialError(f"exec plugin {plugin.command} gave a certificate without its key, or the reverse")
    if not status.token and not status.client_certificate_data:
        raise CredentialError(f"exec plugin {plugin.command} gave neither a token nor a client certificate")
    credential = Credential(
        authorization=f"Bearer {status.token}" if status.token else "",
        certificate=status.client_certificate_data.encode(),
        key=status.client_key_data.encode(),
    )
    return credential, expires
