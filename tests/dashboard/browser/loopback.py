"""Servers on loopback in front of the page: an OpenID Connect provider, and a proxy that signs its visitors in."""

import base64
import hashlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.dashboard.browser.scene import NOW

CLIENT = "tessera-page"


class _Server:
    """Answers requests in threads; ``url`` is its address."""

    def __init__(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.get(self)

            def do_POST(self) -> None:
                owner.post(self)

            def log_message(self, *_: object) -> None:
                """Is silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://localhost:{self._server.server_port}"

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers GET."""
        raise NotImplementedError

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers POST."""
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Serves until the context ends."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


def _reply(handler: BaseHTTPRequestHandler, code: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


class LoopbackProvider(_Server):
    """A provider that lets Ann in without a question.

    Args:
        on_token: called with each ID token that it gives.

    Attributes:
        fault: what it does wrong: ``state``, ``nonce``, ``audience``, ``denied``; empty for nothing.
        asked: the parameters of each request to sign in.
    """

    def __init__(self, on_token: Callable[[str], None]) -> None:
        super().__init__()
        self._on_token = on_token
        self._codes: dict[str, dict[str, str]] = {}
        self.fault = ""
        self.asked: list[dict[str, str]] = []

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        """The provider's description, and its page, which sends the visitor back."""
        parts = urlsplit(handler.path)
        if parts.path == "/.well-known/openid-configuration":
            ends = {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token")}
            self._json(handler, {"issuer": self.url, "response_types_supported": ["code"], **ends})
        elif parts.path == "/authorization":
            self._send_back(handler, {name: values[0] for name, values in parse_qs(parts.query).items()})
        else:
            _reply(handler, 404)

    def _send_back(self, handler: BaseHTTPRequestHandler, asked: dict[str, str]) -> None:
        self.asked.append(asked)
        code = f"code-{len(self.asked)}"
        self._codes[code] = asked
        answer = {"code": code} if self.fault != "denied" else {"error": "access_denied"}
        state = "another" if self.fault == "state" else asked["state"]
        _reply(handler, 302, Location=f"{asked['redirect_uri']}?{urlencode({**answer, 'state': state})}")

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        """Gives an ID token for a code, once, to who has its verifier."""
        body = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        given = {name: values[0] for name, values in parse_qs(body).items()}
        asked = self._codes.pop(given["code"], None)
        challenge = _base64(hashlib.sha256(given["code_verifier"].encode()).digest())
        if asked is None or challenge != asked["code_challenge"] or given["redirect_uri"] != asked["redirect_uri"]:
            self._json(handler, {"error": "invalid_grant"}, 400)
            return
        token = self._token(asked["nonce"])
        self._on_token(token)
        self._json(handler, {"access_token": "opaque", "token_type": "Bearer", "id_token": token, "expires_in": 600})

    def _token(self, nonce: str) -> str:
        """An ID token whose signature nobody checks here: that is the API server's business."""
        claims = {
            "iss": self.url,
            "sub": "ann",
            "aud": "another" if self.fault == "audience" else CLIENT,
            "nonce": "another" if self.fault == "nonce" else nonce,
            "iat": int(NOW) - 1,
            "exp": int(NOW) + 600,
        }
        parts = [_base64(json.dumps(each).encode()) for each in ({"alg": "RS256", "typ": "JWT"}, claims)]
        return ".".join((*parts, _base64(b"signature")))

    @staticmethod
    def _json(handler: BaseHTTPRequestHandler, body: Any, code: int = 200) -> None:
        headers = {"Content-Type": "application/json", "Access-Control-Allow-Origin": "*"}
        _reply(handler, code, json.dumps(body).encode(), **headers)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class LoopbackProxy(_Server):
    """A proxy whose visitors have signed in: it adds their token to each request, as oauth2-proxy does.

    Args:
        page: the page behind it.
        token: of its visitors.

    """

    def __init__(self, page: str, token: str) -> None:
        super().__init__()
        self._page = urlsplit(page).netloc
        self._token = token
        self._open: list[http.client.HTTPConnection] = []
        self._over = False

    def sign_out(self) -> None:
        """Ends all connections; from now on its visitors must sign in again."""
        self._over = True
        for each in self._open:
            if each.sock is not None:
                each.sock.shutdown(socket.SHUT_RDWR)

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        """Passes a request on, and its answer as it comes."""
        if self._over:
            _reply(handler, 302, Location="https://login.example.com/")
            return
        kept = ("host", "accept", "origin", "last-event-id")
        headers = {name: value for name, value in handler.headers.items() if name.lower() in kept}
        behind = http.client.HTTPConnection(self._page)
        self._open.append(behind)
        behind.request("GET", handler.path, headers={**headers, "Authorization": f"Bearer {self._token}"})
        answer = behind.getresponse()
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection"}:
                handler.send_header(name, value)
        handler.send_header("Connection", "close")
        handler.end_headers()
        try:
            while data := answer.read1(65536):
                handler.wfile.write(data)
        except OSError:
            pass  # one side is gone
        finally:
            behind.close()
            handler.close_connection = True
