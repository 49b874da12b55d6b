"""After a way back to an older version: controller and agent refuse objects with the stamp of a newer format."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import INSTASLICE_FORMAT, INSTASLICES
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import FORMAT_ANNOTATION

PLACE = "instaslice-system"


async def stamp(lab: VirtualLab, version: int) -> None:
    patch = {"metadata": {"annotations": {FORMAT_ANNOTATION: str(version)}}}
    await lab.client.merge_patch(INSTASLICES.as_dicts(), "node-1", patch, PLACE)


async def start_anew(lab: VirtualLab) -> None:
    """Ends all of Tessera's processes; others begin in their place."""
    for pod in (await lab.client.list(PODS, "tessera-system")).items:
        await lab.client.delete(PODS, pod.metadata.name, "tessera-system")
    await lab.clock.sleep(60)


def test_a_newer_object_keeps_new_slices_off_its_node_only(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        on_first: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
        await lab.create("old", {"nvidia.com/mig-3g.20gb": 1}, **on_first)
        await lab.running("old")
        hardware = lab.hardware("node-1")
        await stamp(lab, INSTASLICE_FORMAT + 1)
        await start_anew(lab)
        await lab.until(lambda: lab.condition("GpuInstasliceValid")[0] == "False", "the node says so")
        assert "this version of Tessera knows formats up to 1" in lab.condition("GpuInstasliceValid")[2]

        await lab.create("new", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("new")
        assert lab.hardware("node-1") == hardware
        assert len(lab.hardware("node-2")) == 1
        assert lab.ready("old")

        await stamp(lab, INSTASLICE_FORMAT)
        await lab.create("again", {"nvidia.com/mig-3g.20gb": 1}, **on_first)
        await lab.running("again")
        assert len(lab.hardware("node-1")) == 2

    in_lab(scenario, nodes="2*1xA100-40GB")
