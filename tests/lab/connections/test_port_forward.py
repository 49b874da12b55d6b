"""``kubectl port-forward`` to simulated servers: the seed's last step, several connections at once, and refusals."""

import asyncio
import io
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.lab.connections.conftest import RunningCluster

from tessera.kube.resources import DEPLOYMENTS, SERVICES
from tessera_lab.limits import TUNNELS

HTTP = "lab.tessera.dev/http"


@asynccontextmanager
async def forwarded(running: RunningCluster, target: str, port: int) -> AsyncIterator[tuple[str, Any]]:
    """Forwards a free port of this machine; gives its URL and kubectl."""
    command = ["kubectl", "port-forward", "--address=127.0.0.1", target, f":{port}"]
    process = await asyncio.create_subprocess_exec(
        *command, env=running.kubectl().env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        first = (await process.stdout.readline()).decode()
        found = re.fullmatch(rf"Forwarding from 127\.0\.0\.1:(\d+) -> {port}\n", first)
        assert found, first + (await process.communicate())[1].decode()
        yield f"http://127.0.0.1:{found[1]}", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_pages_of_a_pod(running: RunningCluster) -> None:
    declared = "{port: 8080, answer: hello, status: 203, contentType: text/x-test}"
    await running.run("p", annotations={HTTP: declared})
    async with forwarded(running, "pod/p", 8080) as (url, _), aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(f"{url}/any", data=b"x" * 500_000) as answer:
                assert (answer.status, await answer.text()) == (203, "hello")
                assert answer.headers["content-type"] == "text/x-test"
                assert answer.headers["server"] == "tessera-lab (simulated)"
        async with session.post(f"{url}/any", data=io.BytesIO(b"x" * 1_500_000)) as answer:
            assert answer.status == 413


async def test_a_large_answer_and_many_connections_at_once(running: RunningCluster) -> None:
    text = "0123456789abcde " * 900
    await running.run("p", annotations={HTTP: json.dumps({"port": 80, "answer": text, "latency": 0.05})})
    async with forwarded(running, "pod/p", 80) as (url, _), aiohttp.ClientSession() as session:

        async def get() -> str:
            async with session.get(url) as answer:
                return await answer.text()

        assert set(await asyncio.gather(*(get() for _ in range(15)))) == {text}


async def test_a_port_at_which_nothing_listens(running: RunningCluster) -> None:
    await running.run("p")
    async with forwarded(running, "pod/p", 81) as (url, process), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(url)
        _, said = await asyncio.wait_for(process.communicate(), 30)
    assert "error forwarding port 81 to pod p: dial tcp 10." in said.decode()
    assert f"connection refused; a pod of the lab serves what its annotation {HTTP} declares" in said.decode()


async def test_the_server_ends_with_its_container(running: RunningCluster) -> None:
    await running.run("p", annotations={HTTP: "{port: 80}"})
    kubectl = running.kubectl()
    async with forwarded(running, "pod/p", 80) as (url, process), aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert await answer.text() == "simulated: a stand-in of the lab answers\n"
        await kubectl("delete", "pod", "p", "--now")
        with pytest.raises(aiohttp.ClientError):
            await session.get(url)
        assert b"the pod does not run" in (await asyncio.wait_for(process.communicate(), 30))[1]


async def test_a_namespace_has_so_many_at_a_time(running: RunningCluster) -> None:
    await running.run("p", annotations={HTTP: "{port: 80}"})
    async with AsyncExitStack() as stack:
        for _ in range(TUNNELS):
            await stack.enter_async_context(forwarded(running, "pod/p", 80))
        refused = await running.kubectl()("port-forward", "pod/p", ":80", fails=True)
    assert "port-forwards to pods of namespace default: at most 10 port-forwards are allowed at a time" in refused
    async with asyncio.timeout(30):
        while True:
            try:
                async with forwarded(running, "pod/p", 80) as (url, _), aiohttp.ClientSession() as session:
                    await session.get(url)
                    return
            except AssertionError:  # the server has not yet seen that the others ended
                await asyncio.sleep(0.05)


async def test_the_article_s_last_step(running: RunningCluster) -> None:
    """``oc port-forward svc/vllm 8000:8000`` and its ``curl``, but for the local port."""
    container = {"name": "vllm", "image": "vllm/vllm-openai:latest", "args": ["--model=facebook/opt-125m"]}
    template = {"metadata": {"labels": {"app": "vllm"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "template": template}
    await running.client.create(DEPLOYMENTS.as_dicts(), {"metadata": {"name": "vllm"}, "spec": spec}, "default")
    service = {"metadata": {"name": "vllm"}, "spec": {"selector": {"app": "vllm"}, "ports": [{"port": 8000}]}}
    await running.client.create(SERVICES.as_dicts(), service, "default")
    await running.kubectl()("rollout", "status", "deployment/vllm", "--timeout=60s")
    asked = {"model": "facebook/opt-125m", "prompt": "San Francisco is a", "max_tokens": 7, "temperature": 0}
    async with forwarded(running, "svc/vllm", 8000) as (url, _):
        curl = ["curl", "-s", f"{url}/v1/completions", "-H", "Content-Type: application/json", "-d", json.dumps(asked)]
        done = await asyncio.to_thread(subprocess.run, curl, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["choices"] == [
        {
            "index": 0,
            "text": " simulated: no model runs in this lab",
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 12, "completion_tokens": 7}
    assert (answer["object"], answer["model"]) == ("text_completion", "facebook/opt-125m")
