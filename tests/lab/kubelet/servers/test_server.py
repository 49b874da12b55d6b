"""A simulated server at work, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.support.ports import free_port

from tessera.clock import LoopClock, SystemClock
from tessera.kube.requests import Request, Response
from tessera_lab.kubelet.servers.behaviour import HttpBehaviour
from tessera_lab.kubelet.servers.server import SimulatedServer, SimulatedServers
from tessera_lab.limits import LAB_SERVER
from tessera_lab.simulation.virtual_time import CountedClock, run_virtual

PAGE = Request(method="GET", path="/")


def play(behaviour: HttpBehaviour, story: Callable[[SimulatedServer, CountedClock], Awaitable[Any]]) -> Any:
    """The result of a story."""

    async def main() -> Any:
        clock = CountedClock(LoopClock(1_800_000_000))
        return await story(SimulatedServer(behaviour, clock), clock)

    return run_virtual(main())


async def finish_times(server: SimulatedServer, clock: CountedClock) -> list[float]:
    """When eight requests that came at once were answered."""
    began = clock.monotonic()

    async def ask() -> float:
        await server.answer(PAGE)
        return round(clock.monotonic() - began, 6)

    return sorted(await asyncio.gather(*(ask() for _ in range(8))))


@pytest.mark.parametrize(
    ("behaviour", "times"),
    [
        (HttpBehaviour(), [0.0] * 8),
        (HttpBehaviour(latency=2.0), [2.0] * 8),
        (HttpBehaviour(latency=2.0, concurrency=3), [2.0] * 3 + [4.0] * 3 + [6.0] * 2),
        (HttpBehaviour(per_second=2.0), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
        (HttpBehaviour(latency=1.0, per_second=4.0, concurrency=2), [1.0, 1.25, 2.0, 2.25, 3.0, 3.25, 4.0, 4.25]),
    ],
)
def test_latency_concurrency_and_rate(behaviour: HttpBehaviour, times: list[float]) -> None:
    assert play(behaviour, finish_times) == times


def test_too_many_that_wait_are_refused() -> None:
    async def story(server: SimulatedServer, clock: CountedClock) -> Response:
        asked = [asyncio.create_task(server.answer(PAGE)) for _ in range(LAB_SERVER + 1)]
        await clock.sleep(0.0)
        assert (server.running, server.waiting) == (1, LAB_SERVER)
        refused = await server.answer(PAGE)
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        assert (server.running, server.waiting) == (0, 0)
        return refused

    refused = play(HttpBehaviour(latency=100.0, concurrency=1), story)
    assert (refused.status, refused.headers["server"]) == (503, "tessera-lab (simulated)")


def test_it_listens_where_its_pod_has_an_address_of_this_machine() -> None:
    async def story() -> None:
        behaviour = HttpBehaviour(port=free_port())
        servers, said = SimulatedServers(CountedClock(SystemClock())), list[str]()
        async with servers.running("a", behaviour, "127.0.0.1", said.append):
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{behaviour.port}") as answer:
                assert answer.headers["server"] == "tessera-lab (simulated)"
            assert len(said) == 1
            async with servers.running("b", behaviour, "127.0.0.1", said.append):
                assert (await servers.find("b", behaviour.port).answer(PAGE)).status == 200
        assert said[2].startswith("simulated: only kubectl port-forward and the API server's proxies reach it: ")

    asyncio.run(story())


def completion(**fields: Any) -> Request:
    return Request(method="POST", path="/v1/completions", body=msgspec.json.encode(fields))


async def ask(server: SimulatedServer, request: Request) -> Any:
    answer = await server.answer(request)
    assert answer.headers["server"] == "tessera-lab (simulated)"
    return answer.status, msgspec.json.decode(answer.body)


MODEL = HttpBehaviour(model="m", latency=5.0, concurrency=1)


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"model": "m", "prompt": "a b", "max_tokens": 3, "temperature": 0, "seed": 1}, 200, " simulated: no model"),
        ({"prompt": ["a", "b c"]}, 200, " simulated: no model runs in this lab simulated:"),
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"stream": True}, 400, "has neither stream nor more than one choice"),
        ({"n": 2}, 400, "has neither stream nor more than one choice"),
        ({"max_tokens": 0}, 400, "Expected `int` >= 1"),
        ({"max_tokens": 10**9}, 400, "Expected `int` <= 4096"),
    ],
)
def test_completions(fields: dict[str, Any], status: int, said: str) -> None:
    code, body = play(MODEL, lambda server, _: ask(server, completion(**fields)))
    assert code == status
    assert said in (body["choices"][0]["text"] if code == 200 else body["error"]["message"])


def test_a_chat() -> None:
    request = Request(method="POST", path="/v1/chat/completions", body=b'{"messages": [{"content": "a b"}]}')
    _, body = play(MODEL, lambda server, _: ask(server, request))
    said = {"role": "assistant", "content": "simulated: no model runs in this lab"}
    assert (body["choices"][0]["message"], body["usage"]["prompt_tokens"]) == (said, 3)


def test_health_and_metrics_wait_for_no_work() -> None:
    async def story(server: SimulatedServer, clock: CountedClock) -> None:
        await server.answer(completion(max_tokens=3, prompt="a"))
        asked = [asyncio.create_task(server.answer(completion())) for _ in range(3)]
        await clock.sleep(1.0)
        assert (await server.answer(Request(method="GET", path="/health"))).status == 200
        assert (await ask(server, Request(method="GET", path="/v1/models")))[1]["data"][0]["id"] == "m"
        assert (await ask(server, Request(method="GET", path="/nothing")))[0] == 404
        lines = (await server.answer(Request(method="GET", path="/metrics"))).body.decode().splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            'vllm:num_requests_running{engine="0",model_name="m"} 1.0',
            'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0',
            'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 1.0',
            'vllm:prompt_tokens_total{engine="0",model_name="m"} 2.0',
            'vllm:generation_tokens_total{engine="0",model_name="m"} 3.0',
        ]
        await asyncio.gather(*asked)

    play(MODEL, story)
