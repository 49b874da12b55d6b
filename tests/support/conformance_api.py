"""Raw requests, watches and kubectl for the conformance tests, and the objects that they create."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tessera.kube.http import HttpTransport
from tessera.kube.requests import Request, Response

#: Seconds in which a controller of a real cluster does its part.
TIMEOUT = 180.0
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

Obj = dict[str, Any]


class Answer(msgspec.Struct):
    """An answer: HTTP status, headers in lower case, the decoded body."""

    status: int
    headers: dict[str, str]
    body: Any

    def ok(self) -> Any:
        """The body of a request that succeeded."""
        assert self.status < 300, f"{self.status}: {self.body}"
        return self.body

    def refused(self, status: int, reason: str = "") -> str:
        """The message of a refusal with that status and reason."""
        assert self.status == status, f"{self.status}: {self.body}"
        assert self.body["kind"] == "Status"
        assert self.body["status"] == "Failure"
        assert not reason or self.body["reason"] == reason
        return str(self.body["message"])


class Api:
    """Raw requests as the administrator."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport

    async def __call__(
        self, method: str, path: str, body: Any = None, *, content: str = "application/json", accept: str = "*/*"
    ) -> Answer:
        path, _, query = path.partition("?")
        pairs = [tuple(each.split("=", 1)) for each in query.split("&") if each]
        headers = {"accept": accept, "user-agent": "tessera-conformance"}
        if body is not None:
            headers["content-type"] = content
        data = b"" if body is None else msgspec.json.encode(body)
        request = Request(method=method, path=path, query=pairs, headers=headers, body=data)  # type: ignore[arg-type]
        answer = await self._transport.request(request)
        return Answer(answer.status, dict(answer.headers), _decoded(answer))

    async def until(self, path: str, found: Callable[[Answer], bool]) -> Answer:
        """The first answer of a GET that satisfies; controllers need a moment."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self("GET", path)
                if found(answer):
                    return answer
                await asyncio.sleep(0.05)

    async def gone(self, path: str) -> None:
        """Waits until there is no such object."""
        await self.until(path, lambda answer: answer.status == 404)

    @asynccontextmanager
    async def watch(self, path: str, *, accept: str = "application/json") -> AsyncIterator["Watch"]:
        """An open watch."""
        path, _, query = path.partition("?")
        pairs = [("watch", "true"), *(tuple(each.split("=", 1)) for each in query.split("&") if each)]
        request = Request(method="GET", path=path, query=pairs, headers={"accept": accept})  # type: ignore[arg-type]
        async with self._transport.stream(request) as stream:
            yield Watch(stream.status, stream.chunks())


def _decoded(answer: Response) -> Any:
    """The body: JSON, declared so or not, or a line of text where nothing is served at a path."""
    text = answer.body.decode()
    return msgspec.json.decode(text) if text.startswith(("{", "[")) else text


class Watch:
    """Events of an open watch, one after the other."""

    def __init__(self, status: int, chunks: AsyncIterator[bytes]) -> None:
        self.status = status
        self._chunks = chunks
        self._rest = b""

    async def next(self) -> tuple[str, Obj]:
        """Type and object of the next event.

        Raises:
            StopAsyncIteration: the server ended the watch.
        """
        async with asyncio.timeout(TIMEOUT):
            while b"\n" not in self._rest:
                self._rest += await anext(self._chunks)
        line, _, self._rest = self._rest.partition(b"\n")
        event = msgspec.json.decode(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Types and names of the next events, bookmarks left out."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            kind, obj = await self.next()
            assert kind != "ERROR", obj["message"]
            if kind != "BOOKMARK":
                found.append((kind, obj["metadata"]["name"]))
        return found


class Kubectl:
    """kubectl against the server, in one namespace; ``env`` has the variables that it runs with."""

    def __init__(self, kubeconfig: Path, namespace: str, home: Path) -> None:
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}
        self._namespace = namespace

    async def __call__(self, *arguments: str, manifest: Any = None, fails: bool = False) -> str:
        """Returns the program's standard output, or standard error if it is to fail."""
        text = None if manifest is None else json.dumps(manifest)
        command = ["kubectl", "-n", self._namespace, *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, input=text, env=self.env, capture_output=True, text=True, timeout=TIMEOUT
        )
        assert (done.returncode != 0) is fails, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return str(done.stderr if fails else done.stdout)


def configmap(name: str = "", **data: str) -> Obj:
    """A ConfigMap."""
    meta = {"name": name} if name else {"generateName": "cm-"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def gated_pod(name: str, *gates: str, limits: Obj | None = None) -> Obj:
    """A pod that no scheduler touches while it has a gate."""
    container: Obj = {"name": "main", "image": "registry.k8s.io/pause:3.10"}
    if limits:
        container["resources"] = {"limits": limits}
    held = [{"name": gate} for gate in gates or ("example.com/held",)]
    spec = {"containers": [container], "schedulingGates": held, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, replicas: int = 0) -> Obj:
    """A Deployment; without replicas it makes no pods."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "example.com/a:1"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def limited(api: Api, core: str, hard: Obj) -> None:
    """A quota ``q`` that is in force: who admits has seen a later one already."""
    quotas = f"{core}/resourcequotas"
    (await api("POST", quotas, {"metadata": {"name": "q"}, "spec": {"hard": hard}})).ok()
    await api.until(f"{quotas}/q", lambda answer: bool(answer.body.get("status", {}).get("used")))
    later = {"metadata": {"name": "later"}, "spec": {"hard": {"count/services": "0"}}}
    (await api("POST", quotas, later)).ok()
    service = {"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 80}]}}
    async with asyncio.timeout(TIMEOUT):
        while (await api("POST", f"{core}/services?dryRun=All", service)).status != 403:
            pass
    (await api("DELETE", f"{quotas}/later")).ok()


def crd(word: str, schema: Obj, /, **version: Any) -> Obj:
    """A namespaced CRD ``<word>s.conformance.tessera.dev`` of kind ``<Word>``."""
    first = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": f"{word}s", "singular": word, "kind": word.capitalize(), "listKind": f"{word.capitalize()}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{word}s.conformance.tessera.dev"},
        "spec": {"group": "conformance.tessera.dev", "scope": "Namespaced", "names": names, "versions": [first]},
    }


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def establish(api: Api, definition: Obj, cleanup: Callable[[str], None]) -> None:
    """Creates a CRD and waits until its objects are served."""
    (await api("POST", CRDS, definition)).ok()
    name = definition["metadata"]["name"]
    cleanup(f"{CRDS}/{name}")
    plural = definition["spec"]["names"]["plural"]
    await api.until(f"/apis/conformance.tessera.dev/v1/{plural}", lambda answer: answer.status == 200)


def custom(word: str, name: str, /, **spec: Any) -> Obj:
    """An object of :func:`crd`."""
    meta = {"name": name}
    return {"apiVersion": "conformance.tessera.dev/v1", "kind": word.capitalize(), "metadata": meta, "spec": spec}


def causes(answer: Answer) -> Sequence[tuple[str, str]]:
    """Field and message of each cause of a refusal."""
    return [(each["field"], each["message"]) for each in answer.body["details"]["causes"]]
