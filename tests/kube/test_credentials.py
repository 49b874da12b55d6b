"""Token files that are renewed, and exec plugins with expiry, as real processes."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kube.conftest import ImpatientClock

from tessera.clock import rfc3339
from tessera.kube.credentials import CredentialError, ExecCredentials, ExecPlugin, TokenFile

V1 = "client.authentication.k8s.io/v1"


def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path, clock: ImpatientClock) -> None:
    async def main() -> None:
        path = tmp_path / "token"
        path.write_text("one")
        credentials = TokenFile(path, clock=clock)
        assert (await credentials.current()).authorization == "Bearer one"
        path.write_text("two")
        clock.time += 59
        assert (await credentials.current()).authorization == "Bearer one"
        clock.time += 2
        assert (await credentials.current()).authorization == "Bearer two"
        path.unlink()
        clock.time += 61
        assert (await credentials.current()).authorization == "Bearer two"

    asyncio.run(main())


async def test_a_token_file_that_never_was_is_an_error(tmp_path: Path, clock: ImpatientClock) -> None:
    with pytest.raises(CredentialError, match="No such file"):
        await TokenFile(tmp_path / "token", clock=clock).current()
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(CredentialError, match="is empty"):
        await TokenFile(tmp_path / "token", clock=clock).current()


def plugin(tmp_path: Path, clock: ImpatientClock, *answers: Any, code: int = 0, **more: Any) -> ExecCredentials:
    """A plugin that prints the n-th answer in its n-th run, and notes what it was told."""
    for number, answer in enumerate(answers):
        (tmp_path / f"answer-{number}").write_text(answer if isinstance(answer, str) else json.dumps(answer))
    script = f"""
import os, sys
runs = {str(tmp_path / "runs")!r}
with open(runs, "a") as file: file.write(os.environ["KUBERNETES_EXEC_INFO"] + "\\n")
number = len(open(runs).readlines()) - 1
print(open({str(tmp_path)!r} + "/answer-%d" % number).read())
print("told why", file=sys.stderr)
sys.exit({code})
"""
    described = ExecPlugin(command=sys.executable, args=("-S", "-c", script), **more)
    return ExecCredentials(described, environment=os.environ, clock=clock)


def runs(tmp_path: Path) -> list[Any]:
    return [json.loads(line) for line in (tmp_path / "runs").read_text().splitlines()]


def answer(**status: str) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "ExecCredential", "status": status}


async def test_a_plugin_runs_once_until_its_credential_expires(tmp_path: Path, clock: ImpatientClock) -> None:
    expiring = answer(token="one", expirationTimestamp=rfc3339(clock.time + 60))
    credentials = plugin(tmp_path, clock, expiring, answer(token="two"))
    found = await asyncio.gather(*(credentials.current() for _ in range(5)))
    assert {credential.authorization for credential in found} == {"Bearer one"}
    clock.time += 61
    assert (await credentials.current()).authorization == "Bearer two"
    clock.time += 1e6
    assert (await credentials.current()).authorization == "Bearer two"
    assert len(runs(tmp_path)) == 2


async def test_a_rejected_credential_is_renewed_and_an_older_rejection_ignored(
    tmp_path: Path, clock: ImpatientClock
) -> None:
    credentials = plugin(tmp_path, clock, answer(token="one"), answer(token="two"))
    first = await credentials.current()
    assert credentials.reject(first)
    assert (await credentials.current()).authorization == "Bearer two"
    assert credentials.reject(first)
    assert (await credentials.current()).authorization == "Bearer two"


async def test_a_plugin_may_give_a_client_certificate_and_is_told_of_the_cluster(
    tmp_path: Path, clock: ImpatientClock
) -> None:
    pair = answer(clientCertificateData="CERT", clientKeyData="KEY")
    credentials = plugin(tmp_path, clock, pair, cluster={"server": "https://c"})
    found = await credentials.current()
    assert (found.certificate, found.key, found.authorization) == (b"CERT", b"KEY", "")
    (told,) = runs(tmp_path)
    assert told == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://c"}},
    }


@pytest.mark.parametrize(
    ("given", "code", "error"),
    [
        ("no json", 0, "printed no ExecCredential"),
        (answer(token="x"), 3, "exit code 3: told why"),
        (answer(), 0, "neither a token nor a client certificate"),
        (answer(clientKeyData="K"), 0, "without its key, or the reverse"),
        (answer(token="x", expirationTimestamp="soon"), 0, "printed no ExecCredential"),
        ({**answer(token="x"), "apiVersion": "v9"}, 0, "answered in apiVersion 'v9'"),
    ],
)
async def test_what_a_plugin_does_wrong_is_said(
    tmp_path: Path, clock: ImpatientClock, given: Any, code: int, error: str
) -> None:
    with pytest.raises(CredentialError, match=error):
        await plugin(tmp_path, clock, given, code=code).current()


async def test_a_missing_plugin_comes_with_its_hint(clock: ImpatientClock) -> None:
    missing = ExecPlugin(command="no-such-plugin-at-all", install_hint="get it from the shop")
    with pytest.raises(CredentialError, match="No such file or directory\nget it from the shop"):
        await ExecCredentials(missing, environment={}, clock=clock).current()


def test_a_plugin_that_needs_a_terminal_is_refused(clock: ImpatientClock) -> None:
    with pytest.raises(CredentialError, match="needs a terminal"):
        ExecCredentials(ExecPlugin(command="x", interactive="Always"), environment={}, clock=clock)
