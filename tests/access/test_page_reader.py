"""Pages through the API server's proxy: by a token of one account, and what is said where it cannot be had."""

import asyncio

import pytest
from tests.access.conftest import GuardedPort, guarded

from tessera.access.page_reader import AGENT_AUDIENCE, CONTROLLER_AUDIENCE, LIFE, PAGE_REFUSAL_LIFE, PageReader
from tessera.cli.base.tenant_view import READ_PAGES, describe_role
from tessera.kube.errors import Forbidden, ServiceUnavailable, Unauthorized
from tessera.kube.requests import Response

SECRET = b"merger-with-acme"


async def read(reader: PageReader, process: GuardedPort, audience: str = AGENT_AUDIENCE) -> bytes:
    return (await reader.get("tessera-system", "agent", process.port, "/usage", audience)).body


async def test_who_has_the_role_reads_a_page() -> None:
    async with guarded() as process:
        await process.bind("tessera-usage-reader", "jane")
        assert SECRET in await read(process.reader("jane"), process)


async def test_who_may_use_the_proxy_alone_is_refused_by_the_right_that_is_missing() -> None:
    async with guarded() as process:
        rule = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}
        role = {"metadata": {"name": "old"}, "rules": [rule]}
        await process.admin("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
        await process.bind("old", "jane")
        with pytest.raises(Forbidden, match='"serviceaccounts/token"'):
            await read(process.reader("jane"), process)
        line = await describe_role(process.client("jane"), READ_PAGES)
        assert line.startswith("the ClusterRole tessera-usage-reader in tessera-system: kubectl create rolebinding")
        assert line.endswith("--clusterrole=tessera-usage-reader --user=jane -n tessera-system")


async def test_without_the_right_to_the_proxy_the_reader_is_refused() -> None:
    async with guarded() as process:
        with pytest.raises(Forbidden):
            await read(process.reader("jane"), process)


async def test_a_page_of_a_process_without_a_guard_needs_no_token_and_no_account() -> None:
    async with guarded() as process:
        await process.bind("tessera-usage-reader", "jane")
        await process.admin("DELETE", "/api/v1/namespaces/tessera-system/serviceaccounts/tessera-reader")

        async def old_page(_address: str, _port: int, _path: str, headers: object) -> Response:
            assert "tessera-token" not in str(headers)
            return Response(status=200, body=SECRET)

        reader = process.reader("jane")
        with pytest.raises(Exception, match='serviceaccounts "tessera-reader" not found'):
            await read(reader, process)
        process.server.parts.get_page = old_page
        assert await read(reader, process) == SECRET


async def test_a_page_that_knows_no_such_audience_refuses_the_token() -> None:
    async with guarded() as process:
        await process.bind("tessera-usage-reader", "jane")
        with pytest.raises(Unauthorized, match="does not accept this token"):
            await read(process.reader("jane"), process, CONTROLLER_AUDIENCE)


async def test_the_account_that_has_lost_its_right_is_named() -> None:
    async with guarded() as process:
        await process.bind("tessera-usage-reader", "jane")
        await process.admin("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/tessera-reader")
        with pytest.raises(Forbidden, match="tessera-system:tessera-reader may not get /usage: bind the ClusterRole"):
            await read(process.reader("jane"), process)


async def test_a_right_that_is_granted_counts_within_seconds() -> None:
    async with guarded() as process:
        rule = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}
        await process.admin(
            "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "old"}, "rules": [rule]}
        )
        await process.bind("old", "jane")
        reader = process.reader("jane")
        with pytest.raises(Forbidden):
            await read(reader, process)
        await process.bind("tessera-usage-reader", "jane")
        process.clock.seconds += PAGE_REFUSAL_LIFE
        assert SECRET in await read(reader, process)


async def test_an_api_server_that_starts_is_asked_again_at_the_next_page() -> None:
    async with guarded() as process:
        reader = PageReader(process.own_client(), process.clock)
        process.silent = True
        with pytest.raises(ServiceUnavailable):
            await read(reader, process)
        process.silent = False
        process.clock.seconds += 1
        assert SECRET in await read(reader, process)


async def test_many_pages_cost_one_token_which_is_renewed_in_time() -> None:
    async with guarded() as process:
        await process.bind("tessera-usage-reader", "jane")
        shown: list[str] = []
        real = process.server.parts.get_page
        assert real is not None

        async def noted(address: str, port: int, path: str, headers: dict[str, str]) -> Response:
            shown.append(headers["tessera-token"])
            assert "authorization" not in headers
            return await real(address, port, path, headers)

        process.server.parts.get_page = noted  # type: ignore[assignment]
        reader = process.reader("jane")
        await asyncio.gather(*(read(reader, process) for _ in range(10)))
        assert len(set(shown)) == 1
        process.clock.seconds += LIFE / 2
        await read(reader, process)
        assert len(set(shown)) == 2
        process.clock.seconds += LIFE - 1
        await read(reader, process)
