"""The transport over HTTP(S), with aiohttp.

It renews credentials. After a 401 it sends the request once more if there are new credentials: a server answers 401
before it acts. It repeats nothing else; aiohttp itself sends a GET or DELETE again if the kept connection was closed
already. Answers come uncompressed: unpacking would cost more CPU than the network inside a cluster.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from tessera.kube.cluster_config import ClusterConfig, TlsContexts, describe_certificate_error
from tessera.kube.credentials import Credential
from tessera.kube.requests import Request, Response, Stream

#: Seconds: to connect, and of silence in a stream. A watch brings a bookmark every minute, so a
#: stream that is silent for a minute and a half is taken for a half-open connection and begins again from its last
#: version. (The watch of a kind without changes is silent too if etcd does not report progress to kube-apiserver,
#: --experimental-watch-progress-notify-interval.)
CONNECT_TIMEOUT = 10.0
SILENCE_TIMEOUT = 90.0
#: Seconds that an idle connection is kept: a TLS handshake costs the API server a millisecond of CPU time.
#: kube-apiserver closes it after 90 s itself (IdleTimeout in k8s.io/apiserver/pkg/server/secure_serving.go).
IDLE_TIMEOUT = 75.0

#: Requests for Leases have connections of their own: a leader renews its Lease while all others wait for answers.
_LEASES = "/apis/coordination.k8s.io/"
#: Bytes in one message of a WebSocket; container runtimes send 32 KiB at most.
_MESSAGE = 2**20
#: Bytes that may wait in a stream before the server is slowed down. Larger than aiohttp's 64 KiB, since objects come
#: by the megabyte while a list is followed by its first changes.
_BUFFER = 2**18


class HttpTransport:
    """Carries requests to one API server.

    Args:
        config: the server and the credentials.
        connections: at most this many at once, and as many for Leases; watches hold one each. A further request waits
            for one of them as long as for an answer.
        silence: how long a stream may bring nothing, seconds.
    """

    def __init__(self, config: ClusterConfig, *, connections: int = 200, silence: float = SILENCE_TIMEOUT) -> None:
        self._silence = silence
        self._config = config
        self._base = config.server.rstrip("/")
        self._connections = connections
        #: The sessions by True for Leases and False for all else.
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._tls = TlsContexts(config)

    async def request(self, request: Request) -> Response:
        """Sends a request and reads the whole answer.

        Raises:
            ConnectionError: no answer was received.
            TimeoutError: none came in time.
            CredentialError: no credentials are available.
        """
        limits = aiohttp.ClientTimeout(total=self._config.timeout, sock_connect=CONNECT_TIMEOUT)
        async with self._answer(request, limits) as answer:
            with _translate_errors(self._base):
                body = await answer.read()
            return Response(status=answer.status, headers=_lowercase_names(answer.headers), body=body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """Sends a request whose answer is read piece by piece.

        Raises:
            ConnectionError: no answer was received.
            TimeoutError: the headers did not come in time.
            CredentialError: no credentials are available.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=self._silence)
        async with self._answer(request, limits) as answer:
            yield _HttpStream(answer, self._base)

    @asynccontextmanager
    async def websocket(
        self, request: Request, protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Opens a WebSocket.

        Args:
            request: its path and query.
            protocols: subprotocols that we support, the preferred one first.

        Raises:
            ConnectionError: it could not be opened, or broke.
            aiohttp.WSServerHandshakeError: the server refused; its ``status`` is the HTTP status.
            CredentialError: no credentials are available.
        """
        credential = await self._config.credentials.current()
        headers = CIMultiDict(self._config.own_headers(credential))
        extra: dict[str, Any] = {"server_hostname": self._config.server_name} if self._config.server_name else {}
        with _translate_errors(self._base):
            opened = await self._session_for(request).ws_connect(
                self._url(request),
                protocols=protocols,
                headers=headers,
                ssl=self._tls.of(credential) or True,
                proxy=self._config.proxy or None,
                max_msg_size=_MESSAGE,
                timeout=aiohttp.ClientWSTimeout(ws_receive=self._silence),
                **extra,
            )
            async with opened as socket:
                yield socket

    async def close(self) -> None:
        """Ends all streams and frees the connections."""
        while self._sessions:
            await self._sessions.popitem()[1].close()

    @asynccontextmanager
    async def _answer(self, request: Request, limits: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        credential = await self._config.credential_of(request)
        answer = await self._send(request, credential, limits)
        if answer.status == 401 and self._config.credentials.reject(credential):
            answer.release()
            credential = await self._config.credential_of(request)
            answer = await self._send(request, credential, limits)
        try:
            yield answer
        finally:
            # An answer that was read whole has given its connection back already; any other must not be reused.
            answer.close()

    async def _send(
        self, request: Request, credential: Credential, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        given = [("accept-encoding", "identity"), *request.headers.items(), *self._config.own_headers(credential)]
        headers = CIMultiDict(given)
        extra: dict[str, Any] = {"server_hostname": self._config.server_name} if self._config.server_name else {}
        if self._config.proxy:
            extra["proxy"] = self._config.proxy
        with _translate_errors(self._base):
            return await self._session_for(request).request(
                request.method,
                self._url(request),
                headers=headers,
                data=request.body or None,
                timeout=limits,
                ssl=self._tls.of(credential) or True,
                allow_redirects=False,
                **extra,
            )

    def _url(self, request: Request) -> URL:
        query = f"?{urlencode(request.query)}" if request.query else ""
        return URL(f"{self._base}{request.path}{query}", encoded=True)

    def _session_for(self, request: Request) -> aiohttp.ClientSession:
        """The session that sends a request; it is made in the running loop, at its first request."""
        is_lease = request.path.startswith(_LEASES)
        if is_lease not in self._sessions:
            self._sessions[is_lease] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=IDLE_TIMEOUT),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_BUFFER,
            )
        return self._sessions[is_lease]


class _HttpStream:
    def __init__(self, answer: aiohttp.ClientResponse, base: str) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = _lowercase_names(answer.headers)
        self._answer = answer
        self._base = base

    async def chunks(self) -> AsyncIterator[bytes]:
        content = self._answer.content
        with _translate_errors(self._base):
            while chunk := await content.readany():
                yield chunk

    async def read(self) -> bytes:
        with _translate_errors(self._base):
            return await self._answer.read()


@contextmanager
def _translate_errors(server: str) -> Iterator[None]:
    """Raises aiohttp's exceptions as those of the transport protocol."""
    try:
        yield
    except aiohttp.WSServerHandshakeError:
        raise
    except aiohttp.SocketTimeoutError as error:
        raise ConnectionError(f"{server} stayed silent for too long") from error
    except TimeoutError as error:
        raise TimeoutError(f"{server} did not answer in time") from error
    except aiohttp.ClientProxyConnectionError as error:
        raise ConnectionError(f"proxy {error.host}:{error.port} to {server}: {_describe_error(error)}") from error
    except aiohttp.ClientHttpProxyError as error:
        raise ConnectionError(f"the proxy to {server} refused with {error.status} {error.message}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionError(f"{server}: {_describe_error(error)}") from error


def _describe_error(error: Exception) -> str:
    """Describes an error in plain words, or in the system's. aiohttp's own texts show Python objects."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return describe_certificate_error(error.certificate_error)
    if (
        isinstance(error, aiohttp.ClientConnectorError)
        and not isinstance(error, aiohttp.ClientSSLError)
        and error.errno
    ):
        return _describe_connect_error(error)
    return str(error) or type(error).__name__


def _describe_connect_error(error: aiohttp.ClientConnectorError) -> str:
    """Describes a failed connection. The numbers of a resolver are not those of the system."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"no address is known for the name {error.host}; is it right, and is the network up?"
    return os.strerror(error.errno or 0).lower()


def _lowercase_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
