"""A child process runs a command on the host; a script plays nsenter."""

import time
from pathlib import Path

import pytest

from tessera.agent.base.host import SENTINEL, SYSTEMCTL, run_on_host
from tessera.limits import CONDITION_MESSAGE

ENDED = "`systemctl reboot` on the host ended with"
NEEDS = "the agent's container must be privileged and have hostPID, and the host needs systemd"


def script(folder: Path, body: str) -> str:
    path = folder / "nsenter"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_request_enters_all_namespaces_of_process_1(tmp_path: Path) -> None:
    await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    asked = (tmp_path / "asked").read_text()
    assert asked == "--target 1 --mount --uts --ipc --net --pid -- systemctl reboot\n"


async def test_kured_is_asked_by_a_file_on_the_host(tmp_path: Path) -> None:
    await run_on_host(SENTINEL, nsenter=script(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    asked = (tmp_path / "asked").read_text()
    assert asked.endswith(" -- touch /var/run/reboot-required\n")
    with pytest.raises(OSError, match="`touch /var/run/reboot-required` on the host ended with 1: read-only"):
        await run_on_host(SENTINEL, nsenter=script(tmp_path, "echo read-only; exit 1"))


async def test_the_containers_environment_stays_in_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, f"env > {tmp_path}/env"))
    told = (tmp_path / "env").read_text()
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" in told
    assert "LD_PRELOAD" not in told


async def test_without_nsenter_the_error_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nsenter cannot be run: No such file or directory.*util-linux"):
        await run_on_host(SYSTEMCTL, nsenter=str(tmp_path / "nsenter"))


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
        await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, body))
    assert str(refusal.value) == told


async def test_a_host_that_does_not_answer_counts_as_requested(tmp_path: Path) -> None:
    began = time.monotonic()
    await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, "exec sleep 600"), seconds=0.1)
    assert time.monotonic() - began < 600


async def test_a_command_of_the_administrator_gets_its_words_without_a_shell(tmp_path: Path) -> None:
    words = ("/usr/local/bin/reboot-node", "--reason", "a card; $(touch /pwned) && more")
    await run_on_host(words, nsenter=script(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/asked; echo done'))
    assert (tmp_path / "asked").read_text().splitlines()[-3:] == list(words)


async def test_a_command_that_does_not_end_has_failed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"`/bin/hang` on the host has not ended within 0\.1 s"):
        await run_on_host(("/bin/hang",), nsenter=script(tmp_path, "exec sleep 600"), seconds=0.1)


async def test_endless_output_is_dropped(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="on the host ended with 3") as refusal:
        await run_on_host(("/bin/chatty",), nsenter=script(tmp_path, "yes no | head -c 9000000; exit 3"))
    assert len(str(refusal.value)) < 2 * CONDITION_MESSAGE
