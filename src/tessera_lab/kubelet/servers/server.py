"""A simulated server: takes connections and requests, and works on them as its declaration says.

Its connections are pairs of sockets in this process, so that HTTP is aiohttp's and buffers are the kernel's. Where pods
of the lab have addresses of this machine, it listens there too, for an agent that reads its metrics. Work takes time of
the node's clock. Requests wait for a place and for their turn; beyond a limit they are refused, as are bodies that are
too large.

A :class:`VllmApi` is vLLM's HTTP API as far as clients of completions and scrapers use it, without a model.

Each answer says that it is simulated: its words are those of one sentence, as many as ``max_tokens`` asks for. Fields
of sampling have nothing to act on and are ignored, as vLLM ignores unknown ones; streams and choices are refused.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Annotated, Any

import msgspec
from aiohttp import web

from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.interfaces import PodPeer
from tessera_lab.kubelet.servers.behaviour import HttpBehaviour
from tessera_lab.limits import LAB_SERVER, LAB_SERVER_BODY
from tessera_lab.simulation.virtual_time import CountedClock

#: What the stand-in says instead of a model.
SENTENCE = "simulated: no model runs in this lab"
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_JSON = {"content-type": "application/json"}


class _Asked(msgspec.Struct):
    """A request for a completion; the defaults are vLLM's."""

    model: str = ""
    prompt: str | list[str] = ""
    messages: list[dict[str, Any]] = []
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    stream: bool = False
    n: int = 1


class Tokens(msgspec.Struct):
    """What a server counted since its start.

    Attributes:
        requests: requests that were answered.
        prompt: tokens of their prompts.
        generated: tokens of their answers.
    """

    requests: int = 0
    prompt: int = 0
    generated: int = 0


class VllmApi:
    """One server's API.

    Args:
        model: the served model's name; empty to serve any.

    Attributes:
        tokens: what it counted.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self.tokens = Tokens()

    def is_work(self, request: Request) -> bool:
        """True if a request is for a completion, which takes time and a place."""
        return request.method == "POST" and request.path in {_COMPLETIONS, _CHAT}

    def answer(self, request: Request, now: float, *, running: int, waiting: int) -> Response:
        """Answers a request.

        Args:
            request: the request.
            now: seconds since 1970.
            running: requests that are worked on.
            waiting: requests that wait.
        """
        match request.method, request.path:
            case "POST", "/v1/completions" | "/v1/chat/completions":
                return self._complete(request, now)
            case "GET", "/health":
                return Response(status=200)
            case "GET", "/version":
                return _json(200, {"version": "simulated"})
            case "GET", "/v1/models":
                entry = {"id": self._model, "object": "model", "created": int(now), "owned_by": "simulated"}
                return _json(200, {"object": "list", "data": [entry]})
            case "GET", "/metrics":
                text = self._metrics(running, waiting)
                return Response(status=200, headers={"content-type": "text/plain; version=0.0.4"}, body=text.encode())
            case _:
                return _json(404, {"detail": "Not Found"})

    def _complete(self, request: Request, now: float) -> Response:
        try:
            asked = msgspec.json.decode(request.body, type=_Asked)
        except (msgspec.DecodeError, RecursionError) as error:
            return _refused(400, f"{error}")
        if self._model and asked.model not in {"", self._model}:
            return _refused(404, f"The model `{asked.model}` does not exist.")
        if asked.stream or asked.n != 1:
            return _refused(400, "simulated: the lab's stand-in has neither stream nor more than one choice")
        chat = request.path == _CHAT
        count = asked.max_tokens or (len(SENTENCE.split()) if chat else 16)
        text = " ".join(islice(cycle(SENTENCE.split()), count))
        prompt = _count_tokens([str(each.get("content", "")) for each in asked.messages] if chat else asked.prompt)
        self.tokens.requests += 1
        self.tokens.prompt += prompt
        self.tokens.generated += count
        said: Mapping[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": f" {text}"}
        answer = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.tokens.requests:032x}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(now),
            "model": self._model or asked.model,
            "system_fingerprint": "simulated",
            "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count},
        }
        return _json(200, answer)

    def _metrics(self, running: int, waiting: int) -> str:
        """The page of metrics: names and labels of vLLM (docs.vllm.ai, production metrics) for one engine."""
        label = self._model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        rows = (
            ("gauge", "vllm:num_requests_running", "", running),
            ("gauge", "vllm:num_requests_waiting", "", waiting),
            ("counter", "vllm:request_success_total", ',finished_reason="length"', self.tokens.requests),
            ("counter", "vllm:prompt_tokens_total", "", self.tokens.prompt),
            ("counter", "vllm:generation_tokens_total", "", self.tokens.generated),
        )
        return "".join(
            f'# TYPE {name} {kind}\n{name}{{engine="0",model_name="{label}"{more}}} {float(value)}\n'
            for kind, name, more, value in rows
        )


def _count_tokens(prompt: str | Sequence[str]) -> int:
    """Words of the prompts, and one more for the begin of each."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    return sum(len(each.split()) + 1 for each in prompts)


def _refused(status: int, message: str) -> Response:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})


def _json(status: int, document: Any) -> Response:
    return Response(status=status, headers=_JSON, body=msgspec.json.encode(document))


#: Seconds for open requests to end with their server; aiohttp counts 0 as no bound.
_SHUTDOWN = 0.01
#: Header of each answer.
SIMULATED = {"server": "tessera-lab (simulated)"}


class SimulatedServer:
    """One server, from its container's start to its end.

    Args:
        behaviour: what it does.
        clock: the node's time; a lab on virtual time may skip the waits.

    Attributes:
        running: requests that are worked on.
        waiting: requests that wait for a place or their turn.
    """

    def __init__(self, behaviour: HttpBehaviour, clock: CountedClock) -> None:
        self._does = behaviour
        self._clock = clock
        self._places = asyncio.Semaphore(behaviour.concurrency)
        self._turn = 0.0
        self._api = VllmApi(behaviour.model) if behaviour.model else None
        self._http = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._listener: asyncio.Server | None = None
        self.running = 0
        self.waiting = 0

    async def connect(self) -> PodPeer:
        """Opens a connection to it."""
        own, other = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(self._http, other)
        return await asyncio.open_connection(sock=own)

    async def listen(self, address: str) -> str:
        """Listens on its port of an address; returns why it cannot, empty if it does."""
        try:
            self._listener = await asyncio.get_running_loop().create_server(self._http, address, self._does.port)
        except OSError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        """Ends all connections."""
        if self._listener is not None:
            self._listener.close()
        self._http.pre_shutdown()
        await self._http.shutdown(_SHUTDOWN)

    async def answer(self, request: Request) -> Response:
        """Answers a request once its work is done."""
        if self._api is not None and not self._api.is_work(request):
            return self._say(request)
        if self.waiting >= LAB_SERVER:
            text = f"simulated: {self.waiting} requests wait; {LAB_SERVER} are allowed\n"
            return Response(status=503, headers={**SIMULATED, "content-type": "text/plain"}, body=text.encode())
        async with self._place():
            if self._does.latency:
                await self._clock.sleep(self._does.latency)
            return self._say(request)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Waits for the request's turn and a place, and holds it."""
        self.waiting += 1
        try:
            await self._wait_turn()
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()

    async def _wait_turn(self) -> None:
        if not self._does.per_second:
            return
        now = self._clock.monotonic()
        turn = max(now, self._turn)
        self._turn = turn + 1 / self._does.per_second
        if turn > now:
            await self._clock.sleep(turn - now)

    def _say(self, request: Request) -> Response:
        if self._api is None:
            headers = {**SIMULATED, "content-type": self._does.content_type}
            return Response(status=self._does.status, headers=headers, body=self._does.answer.encode())
        said = self._api.answer(request, self._clock.now(), running=self.running, waiting=self.waiting)
        return Response(status=said.status, headers={**SIMULATED, **said.headers}, body=said.body)

    async def _handle(self, raw: web.BaseRequest) -> web.Response:
        body = bytearray()
        async for chunk in raw.content.iter_any():
            body += chunk
            if len(body) > LAB_SERVER_BODY:
                return web.Response(status=413, text=f"simulated: {LAB_SERVER_BODY} are allowed in a body\n")
        request = Request(
            method=raw.method,
            path=raw.rel_url.path,
            query=list(raw.rel_url.query.items()),
            headers={name.lower(): value for name, value in raw.headers.items()},
            body=bytes(body),
        )
        said = await self.answer(request)
        return web.Response(status=said.status, headers=said.headers, body=said.body)


class SimulatedServers:
    """The servers of one node's pods, by pod and port."""

    def __init__(self, clock: CountedClock) -> None:
        self._clock = clock
        self._servers: dict[tuple[str, int], SimulatedServer] = {}

    @asynccontextmanager
    async def running(
        self, uid: str, behaviour: HttpBehaviour | None, address: str, log: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Runs a server of a pod inside the block.

        Args:
            uid: the pod's UID.
            behaviour: what the server does; None for a pod without one.
            address: the address of this machine that the pod has; empty for none.
            log: adds a line to the container's log.
        """
        if behaviour is None:
            yield
            return
        server = self._servers[uid, behaviour.port] = SimulatedServer(behaviour, self._clock)
        log(f"simulated: a stand-in serves HTTP on port {behaviour.port}")
        try:
            if address and (why := await server.listen(address)):
                log(f"simulated: only kubectl port-forward and the API server's proxies reach it: {why}")
            yield
        finally:
            del self._servers[uid, behaviour.port]
            await server.close()

    def find(self, uid: str, port: int) -> SimulatedServer:
        """Returns the server at a port of a pod.

        Raises:
            LookupError: none runs there.
        """
        return self._servers[uid, port]
