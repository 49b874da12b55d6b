"""A child process requests the reboot of the host; a script plays nsenter."""

import time
from pathlib import Path

import pytest

from tessera.agent.mig_config.reboot import reboot_host, request_by_sentinel

ENDED = "`systemctl reboot` on the host ended with"
NEEDS = "it needs a privileged container with hostPID on a host with systemd"


def script(folder: Path, body: str) -> str:
    path = folder / "nsenter"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_request_enters_all_namespaces_of_process_1(tmp_path: Path) -> None:
    await reboot_host(nsenter=script(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    asked = (tmp_path / "asked").read_text()
    assert asked == "--target 1 --mount --uts --ipc --net --pid -- systemctl reboot\n"


async def test_kured_is_asked_by_a_file_on_the_host(tmp_path: Path) -> None:
    await request_by_sentinel(nsenter=script(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    asked = (tmp_path / "asked").read_text()
    assert asked.endswith(" -- touch /var/run/reboot-required\n")
    with pytest.raises(OSError, match="`touch /var/run/reboot-required` on the host ended with 1: read-only"):
        await request_by_sentinel(nsenter=script(tmp_path, "echo read-only; exit 1"))


async def test_the_containers_environment_stays_in_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    await reboot_host(nsenter=script(tmp_path, f"env > {tmp_path}/env"))
    told = (tmp_path / "env").read_text()
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" in told
    assert "LD_PRELOAD" not in told


async def test_without_nsenter_the_error_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nsenter cannot be run: No such file or directory.*util-linux"):
        await reboot_host(nsenter=str(tmp_path / "nsenter"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "echo 'nsenter: failed to execute systemctl' >&2; exit 127",
            f"{ENDED} 127: nsenter: failed to execute systemctl; {NEEDS}",
        ),
        (
            "echo 'Call to Reboot failed: Access denied'; exit 4",
            f"{ENDED} 4: Call to Reboot failed: Access denied",
        ),
        ("exit 1", f"{ENDED} 1: no reason given"),
    ],
)
async def test_a_host_that_refuses_is_quoted(tmp_path: Path, body: str, told: str) -> None:
    with pytest.raises(OSError, match="ended with") as refusal:
        await reboot_host(nsenter=script(tmp_path, body))
    assert str(refusal.value) == told


async def test_a_host_that_does_not_answer_counts_as_requested(tmp_path: Path) -> None:
    began = time.monotonic()
    await reboot_host(nsenter=script(tmp_path, "exec sleep 600"), seconds=0.1)
    assert time.monotonic() - began < 600
