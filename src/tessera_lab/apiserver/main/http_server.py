"""The API server behind a socket: aiohttp, TLS with the lab's own authority, and authentication.

A client is identified by its certificate or its bearer token. An invalid token is 401; so is a request without
credentials, unless an authorizer can refuse ``system:anonymous``. ``Impersonate-User`` and ``-Group`` work for users
who may impersonate. Sockets run in real time, so virtual time does not work here.
"""

import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from tessera.cli.base.pod_exec import PROTOCOLS, STATUS, STDERR, STDOUT
from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.authz.certificates import CertificateAuthority, CertificatePair
from tessera_lab.apiserver.authz.identity import ANONYMOUS, AUTHENTICATED, certificate_user
from tessera_lab.apiserver.handlers.pod_connect import TUNNEL_PROTOCOL, PortForward
from tessera_lab.apiserver.interfaces import Attributes, CommandResult, UserInfo
from tessera_lab.apiserver.main.server import ApiServer, StreamResponse, error_response
from tessera_lab.apiserver.portforward.spdy import SpdyError
from tessera_lab.apiserver.portforward.tunnel import Tunnel
from tessera_lab.apiserver.status import StatusError, forbidden_error, unauthorized_error
from tessera_lab.limits import SPDY_FRAME

#: Largest body, bytes (kube-apiserver: 3 MiB).
MAX_BODY = 3 * 2**20
#: Bytes of output in one message, as container runtimes send them.
_EXEC_MESSAGE = 32 * 2**10
#: Bytes of the reason in a message that closes a WebSocket (RFC 6455, section 5.5).
_CLOSE_TEXT = 123
#: How long open connections may take to end when the server closes, seconds.
SHUTDOWN = 1.0


class HttpServer:
    """Serves one API server on one address.

    Args:
        server: answers the requests.
        authority: signs the server's certificate and verifies the clients'; None serves plain HTTP, for a proxy or a
            test: then only bearer tokens identify the client.
        host: address to listen on.
        port: 0 takes a free one; see :attr:`url`.
    """

    def __init__(
        self, server: ApiServer, authority: CertificateAuthority | None, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.server = server
        self._authority = authority
        self._host = host
        self._port = port
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        """The server's URL; the port is known after :meth:`start`."""
        return f"{'https' if self._authority else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            OSError: the address is not available.
        """
        handler = web.Server(self._answer, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(handler, shutdown_timeout=SHUTDOWN)
        await self._runner.setup()
        context = _tls(self._authority, self._host) if self._authority else None
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=context)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Ends the open watches and stops listening."""
        self.server.end_watches()
        if self._runner:
            await self._runner.cleanup()

    async def _answer(self, raw: web.BaseRequest) -> web.StreamResponse:
        try:
            user = self._user(raw)
            request = await _read(raw)
        except StatusError as error:
            return _whole(error_response(error))
        answer = await self.server.handle(request, user)
        if isinstance(answer, CommandResult):
            return await _exec(raw, answer)
        if isinstance(answer, PortForward):
            return await _forward(raw, answer)
        return _whole(answer) if isinstance(answer, Response) else await _stream(raw, answer)

    def _user(self, raw: web.BaseRequest) -> UserInfo:
        """The user who sent the request.

        Raises:
            StatusError: 401, the user is unknown; 403, the user may not impersonate.
        """
        user = self._credential(raw)
        desired = raw.headers.get("Impersonate-User")
        if not desired:
            return user
        groups = raw.headers.getall("Impersonate-Group", [])
        authorizer = self.server.parts.authorizer
        for resource, name in (("users", desired), *(("groups", group) for group in groups)):
            attributes = Attributes(user=user, verb="impersonate", resource=resource, name=name)
            if authorizer and not authorizer.authorize(attributes).allowed:
                reason = (
                    f'User "{user.name}" cannot impersonate resource "{resource}" in API group "" at the cluster scope'
                )
                raise forbidden_error("", resource, name, reason)
        return UserInfo(name=desired, groups=(*groups, AUTHENTICATED))

    def _credential(self, raw: web.BaseRequest) -> UserInfo:
        kind, _, token = raw.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            user = self.server.identities.authenticate(token.strip())
            if user is None:
                raise unauthorized_error()
            return user
        certificate = raw.transport.get_extra_info("peercert") if raw.transport else None
        if certificate:
            return _subject(certificate)
        if self.server.parts.authorizer is None:
            raise unauthorized_error()
        return ANONYMOUS


def _subject(certificate: Mapping[str, Any]) -> UserInfo:
    pairs = [pair for part in certificate["subject"] for pair in part]
    common = next((value for key, value in pairs if key == "commonName"), "")
    return certificate_user(common, [value for key, value in pairs if key == "organizationName"])


async def _read(raw: web.BaseRequest) -> Request:
    if (raw.content_length or 0) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    async for chunk in raw.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            raise _too_large()
    return Request(
        method=raw.method,
        path=raw.rel_url.raw_path,
        query=list(raw.rel_url.query.items()),
        headers={key.lower(): value for key, value in raw.headers.items()},
        body=bytes(body),
    )


def _too_large() -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")


def _whole(answer: Response) -> web.Response:
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


async def _stream(raw: web.BaseRequest, answer: StreamResponse) -> web.StreamResponse:
    """Sends a watch in chunks, until it ends or the client goes away."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.enable_chunked_encoding()
    try:
        await response.prepare(raw)
        async for chunk in answer.chunks():
            await response.write(chunk)
        await response.write_eof()
    except ConnectionError:
        pass  # the client is gone; that is the normal end of a watch
    finally:
        answer.close()
    return response


async def _exec(raw: web.BaseRequest, result: CommandResult) -> web.StreamResponse:
    """Sends a command's output, then a Status with its exit, each in messages of its own channel."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    try:
        await socket.prepare(raw)
        for channel, data in _streams(raw, result):
            for start in range(0, len(data), _EXEC_MESSAGE):
                await socket.send_bytes(bytes([channel]) + data[start : start + _EXEC_MESSAGE])
        await socket.send_bytes(bytes([STATUS]) + msgspec.json.encode(_exit_status(result)))
        await socket.close()
    except ConnectionError:
        pass  # the client is gone
    return socket


async def _forward(raw: web.BaseRequest, forward: PortForward) -> web.StreamResponse:
    """Carries a port-forward until the client goes away or breaks the protocol."""
    socket = web.WebSocketResponse(protocols=(TUNNEL_PROTOCOL,), max_msg_size=2 * int(SPDY_FRAME), compress=False)
    with forward.held:
        try:
            await socket.prepare(raw)
            await Tunnel(forward.pod, forward.connect, socket.send_bytes).run(_messages(socket))
        except* ConnectionError:
            pass  # the client is gone
        except* SpdyError as errors:
            text = "; ".join(str(each) for each in errors.exceptions)
            await socket.close(code=WSCloseCode.PROTOCOL_ERROR, message=text.encode()[:_CLOSE_TEXT])
    return socket


async def _messages(socket: web.WebSocketResponse) -> AsyncIterator[bytes]:
    async for message in socket:
        if message.type is not WSMsgType.BINARY:
            return
        yield message.data


def _streams(raw: web.BaseRequest, result: CommandResult) -> Sequence[tuple[int, bytes]]:
    """The output in the channels that the client reads; a terminal has one stream, with its own line ends."""
    asked = {name for name in ("stdout", "stderr", "tty") if raw.query.get(name) in {"1", "true"}}
    if "tty" in asked:
        return [(STDOUT, (result.stderr + result.stdout).replace(b"\n", b"\r\n"))]
    streams = {"stdout": (STDOUT, result.stdout), "stderr": (STDERR, result.stderr)}
    return [stream for name, stream in streams.items() if name in asked]


def _exit_status(result: CommandResult) -> Mapping[str, Any]:
    if result.code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {result.code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(result.code)}]},
    }


def _tls(authority: CertificateAuthority, host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=authority.certificate.decode())
    _load(context, authority.issue_server_certificate((host, "127.0.0.1")))
    return context


def _load(context: ssl.SSLContext, pair: CertificatePair) -> None:
    """Loads a certificate through temporary files, since Python loads a key from files only."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pair.certificate)
        key.touch(mode=0o600)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)


def kubeconfig(
    url: str,
    authority: CertificateAuthority | None,
    client: CertificatePair | None,
    *,
    token: str = "",
    name: str = "lab",
) -> str:
    """Returns a kubeconfig for kubectl, as YAML (JSON is YAML)."""
    cluster: dict[str, str] = {"server": url}
    if authority:
        cluster["certificate-authority-data"] = _base64(authority.certificate)
    user: dict[str, str] = {"token": token} if token else {}
    if client:
        user |= {"client-certificate-data": _base64(client.certificate), "client-key-data": _base64(client.key)}
    contexts: Sequence[Any] = [{"name": name, "context": {"cluster": name, "user": name}}]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": contexts,
        "current-context": name,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _base64(data: bytes) -> str:
    return msgspec.json.decode(msgspec.json.encode(data), type=str)
