"""``tessera doctor``: how its text joins what the asker has no right to examine."""

import pytest
from tests.kube.conftest import ScriptedServer

from tessera.cli.base.one_shot import OneShotTransport
from tessera.cli.doctor import _lines
from tessera.clock import SystemClock
from tessera.doctor.examination import examine
from tessera.doctor.facts import Refusal, not_examined, ok
from tessera.doctor.reading import try_to_read
from tessera.kube.client import Client
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import StaticCredentials
from tessera.kube.errors import Forbidden, Status, Unauthorized

NO_RIGHT = 'Error from server (Forbidden): nodes is forbidden: User "ann" cannot list resource "nodes" in API group ""'
NO_METRICS = 'Error from server (Forbidden): forbidden: User "ann" cannot get path "/metrics"'


def test_missing_rights_are_one_line_and_a_refusal_by_admission_is_not_one_of_them() -> None:
    quota = 'Error from server (Forbidden): pods "trial" is forbidden: exceeded quota: team'
    findings = [
        not_examined("nodes", Refusal(NO_RIGHT, lacks_right=True)),
        not_examined("feature-gates", Refusal(NO_METRICS, lacks_right=True)),
        not_examined("webhook-reachable", Refusal(quota), "name a namespace"),
    ]
    assert list(_lines(findings, shows_all=False)) == [
        f"unknown  webhook-reachable: not examined: {quota}",
        "         -> name a namespace",
        "unknown  not examined, for lack of rights: nodes, feature-gates",
        "         -> an administrator runs tessera doctor; tessera doctor --all names each right",
        "3 checks: 3 unknown",
    ]


def test_what_is_said_of_many_checks_is_said_once() -> None:
    nodes = Refusal("Error from server (ServiceUnavailable): no")
    findings = [
        not_examined("nodes", nodes, needs="list nodes"),
        ok("clock", "right"),
        not_examined("agents", nodes, needs="list nodes"),
    ]
    assert list(_lines(findings, shows_all=False)) == [
        "unknown  nodes, agents: not examined: Error from server (ServiceUnavailable): no",
        "3 checks: 2 unknown, 1 ok",
    ]


async def test_a_server_that_does_not_know_the_asker_is_one_error() -> None:
    server = ScriptedServer()
    await server.start()
    server.refuses(401, "Unauthorized", "Unauthorized")
    config = ClusterConfig(server=server.url, credentials=StaticCredentials())
    client = Client(OneShotTransport(config), field_manager="t", clock=SystemClock())
    with pytest.raises(Unauthorized):
        await examine(client, SystemClock(), "default")
    await client.close()
    await server.stop()


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ('nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope', True),
        ('forbidden: User "ann" cannot get path "/metrics"', True),
        ('pods "trial" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1', False),
        ('admission webhook "gpus.tessera.dev" denied the request: no', False),
    ],
)
async def test_a_refusal_by_rbac_is_told_from_one_by_admission(message: str, lacks: bool) -> None:
    async def refused() -> None:
        raise Forbidden(Status(code=403, reason="Forbidden", message=message))

    found = await try_to_read(refused())
    assert isinstance(found, Refusal)
    assert (found.lacks_right, found.missing) == (lacks, False)
