"""Reads and applies objects as kubectl does, in the test's process: kubectl takes 50 to 70 ms of a core to start.

That kubectl itself can be used on a cluster is proven by tests/conformance.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tessera.cli.base.kubeconfig import load_config
from tessera.clock import SystemClock
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.http import HttpTransport
from tessera.kube.requests import Request

_LIST = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_DISCOVERY = ",".join((_LIST.format("v2"), _LIST.format("v2beta1")))
#: Options of kubectl that become parameters of the request.
_SELECTORS = {"-l": "labelSelector", "--field-selector": "fieldSelector"}


class ObjectReader:
    """Reads objects of the cluster of a kubeconfig, with its credentials."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._known: dict[str, tuple[str, bool]] = {}

    def read(self, resource: str, *arguments: str) -> Any:
        """An object, or a list of objects in ``items``.

        Args:
            resource: a plural, singular or short name, with a group after a point if need be; ``RESOURCE/NAME`` too.
            arguments: kubectl's: a name; ``-n``, ``-l`` and ``--field-selector`` with their values; ``-A``.

        Raises:
            AssertionError: the server has no such resource, or refuses.
        """
        return asyncio.run(self._read(resource, list(arguments)))

    def apply(self, manifest: Any, namespace: str | None) -> None:
        """Applies an object, or those of a ``List``, as ``kubectl apply --server-side --force-conflicts`` does.

        Raises:
            AssertionError: the server has no such resource, or refuses.
        """
        asyncio.run(self._apply(manifest["items"] if manifest["kind"] == "List" else [manifest], namespace))

    def read_path(self, path: str) -> Any:
        """The document at a path of the server, as ``kubectl get --raw`` shows it.

        Raises:
            AssertionError: the server refuses.
        """
        return asyncio.run(self._read_path(path))

    async def _read_path(self, path: str) -> Any:
        transport = HttpTransport(load_config(clock=SystemClock(), kubeconfig=str(self._kubeconfig)))
        try:
            place, _, query = path.partition("?")
            headers = {"accept": "application/json"}
            request = Request(method="GET", path=place, query=parse_qsl(query), headers=headers)
            status, document = await _ask(transport, request)
            assert status == 200, f"get {path}: {document.get('message')}"
            return document
        finally:
            await transport.close()

    async def _apply(self, objects: Sequence[Any], namespace: str | None) -> None:
        config = load_config(clock=SystemClock(), kubeconfig=str(self._kubeconfig))
        transport = HttpTransport(config)
        try:
            for each in objects:
                meta, group = each["metadata"], each["apiVersion"].rpartition("/")[0]
                word = f"{each['kind'].lower()}.{group}" if group else each["kind"].lower()
                if word not in self._known:
                    self._known = await _discover(transport)
                assert word in self._known, f"the server has no resource {word}"
                place = namespace or meta.get("namespace") or config.namespace
                request = Request(
                    method="PATCH",
                    path=_request(config, *self._known[word], meta["name"], ["-n", place]).path,
                    query=[("fieldManager", "kubectl"), ("force", "true")],
                    headers={"accept": "application/json", "content-type": "application/apply-patch+yaml"},
                    body=msgspec.json.encode(each),
                )
                status, answer = await _ask(transport, request)
                assert status in {200, 201}, f"apply {each['kind']} {meta['name']}: {answer.get('message')}"
        finally:
            await transport.close()

    async def _read(self, resource: str, arguments: list[str]) -> Any:
        config = load_config(clock=SystemClock(), kubeconfig=str(self._kubeconfig))
        transport = HttpTransport(config)
        try:
            word, _, name = resource.partition("/")
            if word not in self._known:
                self._known = await _discover(transport)
            assert word in self._known, f"the server has no resource {word}"
            request = _request(config, *self._known[word], name, arguments)
            status, document = await _ask(transport, request)
            assert status == 200, f"get {resource} {' '.join(arguments)}: {document.get('message')}"
            return document if "items" not in document else _with_kinds(document)
        finally:
            await transport.close()


def _request(config: ClusterConfig, base: str, namespaced: bool, name: str, arguments: Sequence[str]) -> Request:
    namespace, query, rest = config.namespace, list[tuple[str, str]](), iter(arguments)
    for word in rest:
        if word == "-n":
            namespace = next(rest)
        elif word == "-A":
            namespace = ""
        elif word in _SELECTORS:
            query.append((_SELECTORS[word], next(rest)))
        else:
            assert not word.startswith("-"), f"{word} is an option for kubectl alone"
            assert not name, "one object at a time"
            name = word
    folder, _, plural = base.rpartition("/")
    place = f"/namespaces/{namespace}" if namespaced and namespace else ""
    path = f"{folder}{place}/{plural}" + (f"/{name}" if name else "")
    return Request(method="GET", path=path, query=query, headers={"accept": "application/json"})


async def _discover(transport: HttpTransport) -> dict[str, tuple[str, bool]]:
    """Path without namespace, and whether there are namespaces, by each name that a resource has; core names first."""
    found: dict[str, tuple[str, bool]] = {}
    for root in ("/api", "/apis"):
        _, document = await _ask(transport, Request(method="GET", path=root, headers={"accept": _DISCOVERY}))
        for group in document["items"]:
            name = group["metadata"].get("name", "")
            for version in group["versions"]:  # the preferred one first
                base = "/".join(part for part in (root, name, version["version"]) if part)
                for each in version.get("resources", ()):  # none while an aggregated API does not answer
                    place = f"{base}/{each['resource']}", each["scope"] == "Namespaced"
                    for word in (each["resource"], each["singularResource"], *each.get("shortNames", ())):
                        found.setdefault(word, place)
                        found.setdefault(f"{word}.{name}", place)
    return found


async def _ask(transport: HttpTransport, request: Request) -> tuple[int, Any]:
    answer = await transport.request(request)
    return answer.status, msgspec.json.decode(answer.body)


def _with_kinds(document: dict[str, Any]) -> dict[str, Any]:
    """The list with ``apiVersion`` and ``kind`` in each object, which servers leave out in lists of their own kinds."""
    told = {"apiVersion": document["apiVersion"], "kind": document["kind"].removesuffix("List")}
    return {**document, "items": [{**told, **each} for each in document["items"]]}
