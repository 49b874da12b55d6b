"""`kubectl logs`: what a simulated container printed, which begins with the environment that it was given."""

import re

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.errors import ApiError, BadRequest, Invalid
from tessera.kube.resources import PODS
from tessera_lab.installation.process_logs import container_logs

#: The first line of each run's log.
HEAD = "simulated container, image busybox"
APP = "app.kubernetes.io/name"


async def logs(lab: VirtualLab, pod: str, namespace: str = "default", **query: str) -> list[str]:
    """The log's lines."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
    answer = await lab.client.request("GET", path, query=list(query.items()), accept="*/*")
    text: str = answer.body.decode()
    return text.splitlines()


def test_a_container_tells_which_devices_it_sees(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pod", {"nvidia.com/mig-1g.5gb": 1})
        await lab.running("pod")
        (device,) = lab.devices("pod")
        lines = await logs(lab, "pod")
        assert any(device in line for line in lines)
        assert await logs(lab, "pod", tailLines="1") == lines[-1:]
        assert await logs(lab, "pod", tailLines="0") == []
        assert await logs(lab, "pod", limitBytes="5") == [lines[0][:5]]
        with pytest.raises(Invalid, match="limitBytes: Invalid value: 0: must be greater than 0"):
            await logs(lab, "pod", limitBytes="0")

    in_lab(scenario, nodes="1xA100-40GB")


def test_which_container_must_be_said_where_there_are_several(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pair", {}, {})
        await lab.running("pair")
        with pytest.raises(BadRequest, match=r"choose one of: \[c0 c1\]"):
            await logs(lab, "pair")
        with pytest.raises(BadRequest, match="container other is not valid for pod pair"):
            await logs(lab, "pair", container="other")
        assert await logs(lab, "pair", container="c1")

    in_lab(scenario, nodes="0")


def test_what_is_not_played_says_so(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pod", {})
        await lab.running("pod")
        with pytest.raises(ApiError) as refusal:
            await logs(lab, "pod", stream="Stderr")
        assert refusal.value.code == 501

    in_lab(scenario, nodes="0")


def test_lines_have_times(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pod", {})
        await lab.running("pod")
        started = lab.clock.now()
        stamped = await logs(lab, "pod", timestamps="true")
        assert [line.partition(" ")[2] for line in stamped] == await logs(lab, "pod")
        assert all(started - 2 < parse_rfc3339(line.partition(" ")[0]) <= started for line in stamped)
        await lab.clock.sleep(60)
        assert await logs(lab, "pod", sinceSeconds="30") == []
        assert await logs(lab, "pod", sinceSeconds="90") == await logs(lab, "pod")
        assert await logs(lab, "pod", sinceTime=rfc3339(started + 30)) == []
        with pytest.raises(Invalid, match="at most one of"):
            await logs(lab, "pod", sinceSeconds="1", sinceTime=rfc3339(started))
        with pytest.raises(Invalid, match="tailLines: Invalid value: -1"):
            await logs(lab, "pod", tailLines="-1")

    in_lab(scenario, nodes="0")


def test_a_log_that_is_followed_ends_with_its_container(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pod", {}, command="sleep 30", restartPolicy="Never")
        await lab.running("pod")
        began = lab.clock.monotonic()
        assert await logs(lab, "pod", follow="true") == await logs(lab, "pod")
        assert 25 < lab.clock.monotonic() - began < 35

    in_lab(scenario, nodes="0")


def test_the_log_before_a_restart_is_kept_apart(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pod", {}, command="sleep 30", restartPolicy="Always")
        await lab.running("pod")
        with pytest.raises(BadRequest, match='previous terminated container "c0" in pod "pod" not found'):
            await logs(lab, "pod", previous="true")
        await lab.clock.sleep(32)
        assert HEAD in (await logs(lab, "pod"))[0]
        assert await logs(lab, "pod", previous="true") == await logs(lab, "pod")

    in_lab(scenario, nodes="0")


def test_tesseras_pods_have_their_own_log(in_lab: InLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def scenario(lab: VirtualLab) -> None:
        pods = (await lab.client.list(PODS.as_dicts(), SYSTEM_NAMESPACE)).items
        apps: dict[str, str] = {}
        for pod in pods:
            name, app = pod["metadata"]["name"], pod["metadata"]["labels"][APP]
            lines = await logs(lab, name, namespace=SYSTEM_NAMESPACE)
            assert all(re.match(r"20\S+Z (INFO|WARNING|ERROR) tessera\.", line) for line in lines)
            apps[app] = apps.get(app, "") + "\n".join(lines)
        assert apps.keys() == {"tessera-agent", "tessera-controller", "tessera-webhook"}
        for app, text in apps.items():
            assert text, app
            assert {name for name in apps if f" {name.replace('-', '.')}." in text} <= {app}

    with container_logs():
        in_lab(scenario, nodes="1xA100-40GB", own=True)


def test_a_container_that_waits_has_no_log(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("gated", {}, schedulingGates=[{"name": "example.com/hold"}])
        with pytest.raises(BadRequest, match="is waiting to start"):
            await logs(lab, "gated")

    in_lab(scenario, nodes="0")
