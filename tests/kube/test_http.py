"""The HTTP transports: who we are, whom we trust, and what a broken or silent connection becomes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kube.certificates import Authority, Certificate
from tests.kube.conftest import ImpatientClock, ScriptedServer

from tessera.cli.base.connection import connect_transport
from tessera.cli.base.one_shot import OneShotTransport
from tessera.kube.cluster_config import ClusterConfig, tls_context
from tessera.kube.credentials import Credential, StaticCredentials, TokenFile
from tessera.kube.http import HttpTransport
from tessera.kube.requests import Request

GET = Request(method="GET", path="/api/v1/nodes", query=[("labelSelector", "a in (b,c)&x=1"), ("limit", "5")])
#: More requests than the controller has in flight: 64 of pods, and those of nodes.
PROCESS_REQUESTS = 100


Kind = type[HttpTransport] | type[OneShotTransport]


@pytest.fixture(params=[HttpTransport, OneShotTransport], ids=["aiohttp", "one-shot"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The transport of long-running processes, and that of commands."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def tls_server(authority: Authority, tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    """Asks for a client certificate of the authority."""
    pair = authority.issue("127.0.0.1").write(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # servers of clusters are not so strict
    context.load_cert_chain(pair)
    server = ScriptedServer()
    await server.start(ssl=context)
    yield server
    await server.stop()


def with_certificate(certificate: Certificate) -> StaticCredentials:
    return StaticCredentials(Credential(certificate=certificate.pem, key=certificate.key))


async def test_a_request_reaches_the_server_as_it_is_with_the_bearer_token(kind: Kind, server: ScriptedServer) -> None:
    server.answers({"a": 1}, X_Thing="y")
    credentials = StaticCredentials(Credential(authorization="Bearer secret"))
    transport = kind(ClusterConfig(server=server.url + "/prefix/", credentials=credentials))
    answer = await transport.request(GET)
    assert (answer.status, answer.body, answer.headers["x-thing"]) == (200, b'{"a": 1}', "y")
    (call,) = server.calls
    assert call.path == "/prefix/api/v1/nodes"
    assert call.query == {"labelSelector": "a in (b,c)&x=1", "limit": "5"}
    assert call.headers["authorization"] == "Bearer secret"
    assert call.headers["accept-encoding"] == "identity"
    await transport.close()


async def test_a_request_of_another_user_has_no_proof_of_our_own(kind: Kind, server: ScriptedServer) -> None:
    server.answers({})
    credentials = StaticCredentials(Credential(authorization="Bearer secret", certificate=b"x", key=b"y"))
    config = ClusterConfig(server=server.url, credentials=credentials, impersonated=("eve", "admins"))
    transport = kind(config)
    await transport.request(msgspec.structs.replace(GET, headers={"authorization": "Bearer hers"}))
    (call,) = server.calls
    assert call.headers["authorization"] == "Bearer hers"
    assert not [name for name in call.headers if name.startswith("impersonate")]
    await transport.close()


async def test_a_token_that_the_server_rejects_is_read_again_and_the_request_sent_once_more(
    kind: Kind, server: ScriptedServer, clock: ImpatientClock, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    transport = kind(ClusterConfig(server=server.url, credentials=TokenFile(path, clock=clock)))
    server.answers({})
    await transport.request(GET)
    path.write_text("new\n")
    server.refuses(401, "Unauthorized").answers({})
    assert (await transport.request(GET)).status == 200
    assert [call.headers["authorization"] for call in server.calls] == ["Bearer old", "Bearer old", "Bearer new"]
    await transport.close()


async def test_a_rejected_token_that_is_all_there_is_is_not_sent_again(kind: Kind, server: ScriptedServer) -> None:
    server.refuses(401, "Unauthorized")
    credentials = StaticCredentials(Credential(authorization="Bearer secret"))
    transport = kind(ClusterConfig(server=server.url, credentials=credentials))
    assert (await transport.request(GET)).status == 401
    assert len(server.calls) == 1
    await transport.close()


async def test_a_client_certificate_proves_who_we_are(
    kind: Kind, tls_server: ScriptedServer, authority: Authority
) -> None:
    tls_server.answers({})
    credentials = with_certificate(authority.issue("me"))
    transport = kind(ClusterConfig(server=tls_server.url, credentials=credentials, ca=authority.pem))
    assert (await transport.request(GET)).status == 200
    await transport.close()


async def test_a_server_of_another_authority_is_not_trusted(
    kind: Kind, tls_server: ScriptedServer, authority: Authority
) -> None:
    credentials = with_certificate(authority.issue("me"))
    transport = kind(ClusterConfig(server=tls_server.url, credentials=credentials, ca=Authority().pem))
    with pytest.raises(ConnectionError, match="its certificate is signed by an unknown authority"):
        await transport.request(GET)
    await transport.close()


async def test_a_name_without_an_address_is_told_in_plain_words(kind: Kind) -> None:
    transport = kind(ClusterConfig(server="http://nosuch.invalid:1", credentials=StaticCredentials(Credential())))
    with pytest.raises(ConnectionError, match=r"no address is known for the name nosuch\.invalid"):
        await transport.request(GET)
    await transport.close()


@pytest.mark.parametrize("junk", [b"---", b"\xff"])
async def test_an_authority_that_is_no_certificate_is_told_in_plain_words(kind: Kind, junk: bytes) -> None:
    config = ClusterConfig(server="https://127.0.0.1:1", credentials=StaticCredentials(Credential()), ca=junk)
    transport = kind(config)
    with pytest.raises(ConnectionError, match=r"certificate-authority-data of the kubeconfig.*no certificate"):
        await transport.request(GET)
    await transport.close()


@pytest.mark.parametrize(
    ("host", "hours", "called", "said"),
    [
        ("127.0.0.1", (-2, -1), "", "certificate has expired.*whoever runs the server.*renew it"),
        ("127.0.0.1", (1, 2), "", "certificate is not valid yet.*compare the clocks.*this machine"),
        ("10.0.0.9", (-1, 1), "", "certificate is not for this address.*use the name that it has"),
        ("api.example.com", (-1, 1), "", "certificate is not for this address.*use the name that it has"),
        ("api.example.com", (-1, 1), "api.example.org", "certificate is not for this host name.*use the name that"),
    ],
)
async def test_a_certificate_that_is_not_right_is_told_in_plain_words(
    *, kind: Kind, host: str, hours: tuple[int, int], called: str, said: str, tmp_path: Path
) -> None:
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue(host, hours).write(tmp_path))
    secured = ScriptedServer()
    await secured.start(ssl=context)
    config = ClusterConfig(server=secured.url, credentials=StaticCredentials(), ca=authority.pem, server_name=called)
    transport = kind(config)
    with pytest.raises(ConnectionError, match=said):
        await transport.request(Request(method="GET", path="/"))
    await transport.close()
    await secured.stop()


async def test_an_authority_that_another_one_signed_is_trusted_alone_as_by_kubectl(kind: Kind, tmp_path: Path) -> None:
    lower = Authority(above=Authority())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lower.issue("127.0.0.1").write(tmp_path))
    secured = ScriptedServer()
    await secured.start(ssl=context)
    secured.answers({})
    config = ClusterConfig(server=secured.url, credentials=StaticCredentials(), ca=lower.pem)
    transport = kind(config)
    assert (await transport.request(Request(method="GET", path="/"))).status == 200
    await transport.close()
    await secured.stop()


def test_certificates_are_not_judged_more_strictly_than_by_kubectl(authority: Authority) -> None:
    config = ClusterConfig(server="https://host", credentials=StaticCredentials(), ca=authority.pem)
    flags = tls_context(config, Credential()).verify_flags
    assert not flags & ssl.VERIFY_X509_STRICT  # Python 3.13 sets it by default


async def test_verification_can_be_turned_off(kind: Kind, tls_server: ScriptedServer, authority: Authority) -> None:
    tls_server.answers({})
    credentials = with_certificate(authority.issue("me"))
    transport = kind(ClusterConfig(server=tls_server.url, credentials=credentials, verify=False))
    assert (await transport.request(GET)).status == 200
    await transport.close()


async def test_nobody_listening_is_a_connection_error(kind: Kind, server: ScriptedServer) -> None:
    await server.stop()
    transport = kind(ClusterConfig(server=server.url, credentials=StaticCredentials()))
    with pytest.raises(ConnectionError, match=r"^http://127\.0\.0\.1:\d+: connection refused$"):
        await transport.request(GET)
    await transport.close()


async def test_a_proxy_that_takes_no_connection_or_refuses_is_named(kind: Kind, server: ScriptedServer) -> None:
    config = ClusterConfig(server="https://10.0.0.1:6443", credentials=StaticCredentials(), proxy=server.url)
    transport = kind(config)
    server.answers(b"", 403)
    with pytest.raises(ConnectionError, match=r"^the proxy to https://10\.0\.0\.1:6443 refused with 403 X$"):
        await transport.request(GET)
    await server.stop()
    said = r"^proxy 127\.0\.0\.1:\d+ to https://10\.0\.0\.1:6443: connection refused$"
    with pytest.raises(ConnectionError, match=said):
        await transport.request(GET)
    await transport.close()


async def drained(transport: HttpTransport) -> bytes:
    async with asyncio.timeout(60), transport.stream(GET) as stream:
        return b"".join([chunk async for chunk in stream.chunks()])


async def test_a_stream_brings_its_chunks_and_ends(server: ScriptedServer) -> None:
    server.streams(b"one", b"two")
    transport = HttpTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()))
    assert await drained(transport) == b"one\ntwo\n"
    await transport.close()


def test_a_stream_that_is_left_behind_ends_quietly_with_the_loop() -> None:
    troubles: list[dict[str, Any]] = []
    left: list[AsyncIterator[bytes]] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        server = ScriptedServer()
        await server.start()
        server.streams(b"one", b"two")
        transport = HttpTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()))
        async with transport.stream(GET) as stream:
            left.append(stream.chunks())
            await anext(left[0])
        await transport.close()
        await server.stop()

    asyncio.run(leave())
    assert troubles == []


async def test_a_refused_stream_can_be_read(server: ScriptedServer) -> None:
    server.refuses(410, "Expired")
    transport = HttpTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()))
    async with transport.stream(GET) as stream:
        assert stream.status == 410
        assert b"Expired" in await stream.read()
    await transport.close()


async def test_a_stream_that_is_reset_is_a_connection_error(server: ScriptedServer) -> None:
    server.streams(b"one", then="reset")
    transport = HttpTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()))
    with pytest.raises(ConnectionError):
        await drained(transport)
    await transport.close()


async def test_a_stream_that_stays_silent_is_a_connection_error(server: ScriptedServer) -> None:
    server.streams(b"one", then="silence")
    transport = HttpTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()), silence=0.05)
    with pytest.raises(ConnectionError, match="silent"):
        await drained(transport)
    await transport.close()


# The transport of commands


@pytest.mark.parametrize(("patience", "connections"), [(0.0, 20), (60.0, 1)], ids=["slow", "quick"])
async def test_requests_share_a_connection_and_those_that_wait_too_long_get_their_own(
    patience: float, connections: int
) -> None:
    accepted: list[asyncio.StreamWriter] = []
    all_made = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        if len(accepted) == connections:
            all_made.set()
        while await reader.readuntil(b"\r\n\r\n"):
            await all_made.wait()  # so that requests wait for a connection
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            writer.write(b"3;x=y\r\none\r\n4\r\n two\r\n0\r\ntrailer: x\r\n\r\n")

    transport, stop = await one_shot_to(answer, patience)
    for _ in range(3):
        found = await asyncio.gather(*(transport.request(GET) for _ in range(20)))
        assert [(each.status, each.body) for each in found] == [(200, b"one two")] * 20
    assert len(accepted) == connections
    await stop()


async def test_a_request_that_is_given_up_leaves_its_connection_to_the_next() -> None:
    reached = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reached.set()
        await reader.read()

    transport, stop = await one_shot_to(answer, 60.0)
    first, second = (asyncio.create_task(transport.request(GET)) for _ in range(2))
    await reached.wait()
    reached.clear()
    first.cancel()
    await reached.wait()  # the second's, on a connection of its own
    second.cancel()
    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
    await stop()


async def test_answers_that_do_not_come_delay_no_other_request() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"hangs" not in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    transport, stop = await one_shot_to(answer)
    hanging = [asyncio.create_task(transport.request(Request(method="GET", path="/hangs"))) for _ in range(12)]
    found = await asyncio.gather(*(transport.request(GET) for _ in range(12)))
    assert [each.body for each in found] == [b"ok"] * 12
    for each in hanging:
        each.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    await stop()


async def test_no_request_of_a_process_that_runs_on_waits_for_the_answer_of_another(tmp_path: Path) -> None:
    asked, all_asked = [0], asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked[0] += 1
        if asked[0] == PROCESS_REQUESTS:
            all_asked.set()
        await all_asked.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    whole = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
    config.write_bytes(msgspec.json.encode(whole))
    async with connect_transport("t", config) as (_, transport):
        found = await asyncio.gather(*(transport.request(GET) for _ in range(PROCESS_REQUESTS)))
    assert [each.body for each in found] == [b"ok"] * PROCESS_REQUESTS
    listener.close()


async def test_a_lease_waits_for_no_other_request_and_closing_ends_all() -> None:
    held: set[asyncio.StreamWriter] = set()
    full, empty = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.add(writer)
        if len(held) == 2:
            full.set()
        if b"/leases/" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.read()
        held.remove(writer)
        if not held:
            empty.set()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    transport = HttpTransport(ClusterConfig(server=url, credentials=StaticCredentials()), connections=2)
    waiting = [asyncio.create_task(transport.request(GET)) for _ in range(5)]
    await full.wait()
    lease = Request(method="PUT", path="/apis/coordination.k8s.io/v1/namespaces/n/leases/l")
    assert (await transport.request(lease)).body == b"ok"
    assert len(held) == 3
    impatient = HttpTransport(ClusterConfig(server=url, credentials=StaticCredentials(), timeout=0.1), connections=1)
    for found in await asyncio.gather(*(impatient.request(GET) for _ in range(3)), return_exceptions=True):
        assert isinstance(found, TimeoutError), "also those that had no connection"
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    await impatient.close()
    await transport.close()
    await empty.wait()
    listener.close()


async def test_where_nobody_listens_all_requests_fail_at_once(server: ScriptedServer) -> None:
    await server.stop()
    transport = OneShotTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()), patience=60.0)
    found = await asyncio.gather(*(transport.request(GET) for _ in range(20)), return_exceptions=True)
    assert {f"{type(each).__name__}: {each}" for each in found} == {
        f"ConnectionError: {server.url}: connection refused"
    }


async def test_what_changes_nothing_is_sent_again_if_the_kept_connection_had_ended_and_a_write_is_not() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    transport, stop = await one_shot_to(answer)
    review = Request(method="POST", path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=b"{}")
    token = Request(method="POST", path="/api/v1/namespaces/a/serviceaccounts/b/token", body=b"{}")
    trial = Request(method="POST", path="/api/v1/namespaces/a/pods", query=[("dryRun", "All")], body=b"{}")
    for each in (GET, GET, review, token, trial):
        assert (await transport.request(each)).body == b"ok"
    with pytest.raises(ConnectionError, match="the connection ended before the answer"):
        await transport.request(Request(method="POST", path="/", body=b"{}"))
    await stop()


async def test_a_write_after_a_pause_does_not_go_to_a_connection_that_the_server_has_closed() -> None:
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()
        closed.set()

    transport, stop = await one_shot_to(answer)
    for _ in range(3):
        assert (await transport.request(Request(method="POST", path="/", body=b"{}"))).body == b"ok"
        await closed.wait()
        closed.clear()
        await until_sockets_are_read()
    await stop()


async def until_sockets_are_read() -> None:
    """Lets the loop take in what has come over the loopback."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_goes_over_no_connection_that_another_certificate_opened(
    kind: Kind, authority: Authority, tmp_path: Path
) -> None:
    names: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                peer = writer.get_extra_info("peercert")
                names.append(peer and peer["subject"][0][0][1])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(authority.issue("127.0.0.1").write(tmp_path))
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    credentials = with_certificate(authority.issue("me"))
    transport = kind(ClusterConfig(server=url, credentials=credentials, ca=authority.pem))
    hers = msgspec.structs.replace(GET, headers={"authorization": "Bearer hers"})
    for each in (GET, GET, hers, GET):
        await transport.request(each)
    assert names == ["me", "me", None, "me"]
    await transport.close()
    listener.close()


async def test_what_a_proxy_says_to_an_idle_connection_is_no_answer_to_the_next_request() -> None:
    idle = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await idle.wait()
        writer.write(b"HTTP/1.0 408 Request Time-out\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    transport, stop = await one_shot_to(answer)
    for each in (GET, Request(method="POST", path="/", body=b"{}")):
        idle.clear()
        assert (await transport.request(GET)).body == b"ok"
        idle.set()
        await until_sockets_are_read()
        assert (await transport.request(each)).body == b"ok"
    await stop()


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: %s" % (b"y" * 2**19)]
)
async def test_an_answer_that_is_not_http_is_told(answer: bytes) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    transport, stop = await one_shot_to(reply)
    with pytest.raises(ConnectionError, match="the answer is not HTTP"):
        await transport.request(GET)
    await stop()


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        writer.close()

    transport, stop = await one_shot_to(answer)
    assert [(await transport.request(GET)).body for _ in range(2)] == [b"all of it"] * 2
    await stop()


async def test_a_request_that_outlives_the_transport_keeps_no_connection() -> None:

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await transport.close()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    transport, stop = await one_shot_to(answer)
    assert (await transport.request(GET)).body == b"ok"
    await stop()  # it waits until the server has seen the end of each connection


async def test_a_line_break_in_a_header_is_sent_to_nobody(server: ScriptedServer) -> None:
    credentials = StaticCredentials(Credential(authorization="Bearer a\r\nx: y"))
    transport = OneShotTransport(ClusterConfig(server=server.url, credentials=credentials))
    with pytest.raises(ConnectionError, match="line break"):
        await transport.request(GET)
    assert not server.calls


async def one_shot_to(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], patience: float = 0.0
) -> tuple[OneShotTransport, Callable[[], Awaitable[None]]]:
    """A transport to a server that answers so, and what ends both."""
    served: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    transport = OneShotTransport(ClusterConfig(server=url, credentials=StaticCredentials()), patience=patience)

    async def stop() -> None:
        await transport.close()
        await asyncio.wait([each for each in served if each is not None])
        listener.close()

    return transport, stop
