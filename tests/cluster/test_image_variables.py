"""An image that asks for all cards by its own variables gets those that its pod requests, and none if it requests none.

Admission cannot see the variables of an image. The device plugin's answer and the agent's CDI edits replace them, and
NVIDIA's runtime ignores them in containers that are not privileged.
"""

import tomllib

import pytest
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.cli.config.runtimes import RUNTIMES
from tessera.kube.resources import PODS

CUDA = "nvcr.io/nvidia/cuda:12.9.1-base-ubuntu24.04"


async def create(lab: VirtualLab, name: str, limits: dict[str, int]) -> None:
    pod = manifest(name, limits, command="sleep infinity")
    pod["spec"]["containers"][0]["image"] = CUDA
    await lab.client.create(PODS.as_dicts(), pod, "default")
    await lab.running(name)


@pytest.mark.parametrize(("layout", "limits"), [("dynamic", {"nvidia.com/mig-1g.5gb": 1}), ("", {"nvidia.com/gpu": 1})])
def test_who_requests_nothing_gets_nothing(in_lab: InLab, layout: str, limits: dict[str, int]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        if not layout:
            await lab.becomes({"nvidia.com/gpu": 4})
        await create(lab, "asks-nothing", {})
        assert lab.environment("asks-nothing")["NVIDIA_VISIBLE_DEVICES"] == "all"
        machine = lab.machine()
        assert [each for gpu in machine.uuids() for each in machine.processes(gpu)] == []
        await create(lab, "asks", limits)
        (device,) = lab.devices("asks")
        assert device in (lab.mig_uuids() if layout else machine.uuids())
        assert lab.environment("asks")["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"

    in_lab(scenario, nodes="4xA100-40GB", mig_config=layout)


#: Settings of NVIDIA's runtime, with the cards that a container then gets whose image asks for all.
SETTINGS = [*((name, found.files[-1].text, 0) for name, found in RUNTIMES.items()), ("as packaged", "", 4)]


@pytest.mark.parametrize(("text", "cards"), [each[1:] for each in SETTINGS], ids=[each[0] for each in SETTINGS])
def test_the_settings_of_each_runtime_give_an_image_no_card(in_lab: InLab, text: str, cards: int) -> None:
    obeys = tomllib.loads(text).get("accept-nvidia-visible-devices-envvar-when-unprivileged", True)

    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes({"nvidia.com/gpu": 4})
        node = lab.cluster.nodes["node-1"]
        node.set_nvidia_runtime(obeys_images=obeys)
        await create(lab, "asks-nothing", {})
        assert node.processes is not None
        assert sum(len(each.devices) for each in node.processes.containers) == cards

    in_lab(scenario, nodes="4xA100-40GB", mig_config="")
