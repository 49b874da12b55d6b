"""Containers on simulated cards: CDI brings the slice in, and a slice in use cannot be destroyed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import PODS
from tessera.kubelet.interfaces import ContainerAllocateResponse
from tessera.nvml.errors import InUse
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.context import InProcessPlugins

RESOURCE = "nvidia.com/mig-1g.5gb"


async def test_a_slice_in_use_cannot_be_destroyed_and_is_free_after_the_container(
    lab: ControlPlaneLab, slices: Callable[..., Any], tmp_path: Path
) -> None:
    machine = SimulatedMachine("1xA100-40GB", seed="n1", mig=True)
    (gpu,) = machine.uuids()
    gi_id = machine.create_gpu_instance(gpu, "1g.5gb", 0)
    made = machine.create_compute_instance(gpu, gi_id, 0)

    class Cdi(slices):  # type: ignore[misc, valid-type]
        async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
            return [
                ContainerAllocateResponse(cdi_devices=tuple(f"tessera.dev/mig={each}" for each in ids))
                for ids in requests
            ]

    direct = InProcessPlugins(cdi=tmp_path)
    (node,) = await lab.start_nodes("n1", plugins=direct, machine=machine)
    lab.start(direct.bus.serve(Cdi("a")))
    await lab.clock.sleep(0.1)
    limits = {"limits": {RESOURCE: "1"}}
    container = {"name": "c", "image": "app", "command": ["sleep", "60"], "resources": limits}
    spec = {"nodeName": "n1", "containers": [container], "restartPolicy": "Never"}
    await lab.api.create(PODS.as_dicts(), {"metadata": {"name": "p"}, "spec": spec}, "default")
    await lab.clock.sleep(1)
    waiting = (await lab.get(PODS, "p"))["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerError"
    assert waiting["message"].endswith("unresolvable CDI devices tessera.dev/mig=a")

    device = {"name": "a", "containerEdits": {"env": [f"NVIDIA_VISIBLE_DEVICES={made.mig_uuid}"]}}
    file = {"cdiVersion": "0.8.0", "kind": "tessera.dev/mig", "devices": [device]}
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(file))
    assert await lab.phase_after(10, "p") == "Running"
    assert node.pods.container_env("default", "p", "c")["NVIDIA_VISIBLE_DEVICES"] == made.mig_uuid
    assert machine.memory(made.mig_uuid).used == 1 << 30
    with pytest.raises(InUse):
        machine.destroy_compute_instance(gpu, gi_id, made.ci_id)
    assert await lab.phase_after(60, "p") == "Succeeded"
    machine.destroy_compute_instance(gpu, gi_id, made.ci_id)


async def test_a_container_with_a_card_holds_the_driver(lab: ControlPlaneLab, slices: Callable[..., Any]) -> None:
    machine = SimulatedMachine("1xT4", seed="n1", driver=None)
    (gpu,) = machine.uuids()

    class Whole(slices):  # type: ignore[misc, valid-type]
        async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
            return [ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": gpu}) for _ in requests]

    direct = InProcessPlugins()
    await lab.start_nodes("n1", plugins=direct, machine=machine)
    lab.start(direct.bus.serve(Whole("a")))
    await lab.clock.sleep(0.1)
    limits = {"limits": {RESOURCE: "1"}}
    container = {"name": "c", "image": "app", "command": ["sleep", "60"], "resources": limits}
    for name in ("without", "with"):
        spec = {"nodeName": "n1", "containers": [container], "restartPolicy": "Never"}
        await lab.api.create(PODS.as_dicts(), {"metadata": {"name": name}, "spec": spec}, "default")
        await lab.clock.sleep(1)
        machine.load_driver("595.58.03")
    assert await lab.phase("without") == "Failed"
    assert await lab.phase("with") == "Running"
    with pytest.raises(InUse):
        machine.unload_driver()
    assert await lab.phase_after(60, "with") == "Succeeded"
    machine.unload_driver()
