"""The garbage collector deletes objects with their owner, keeps others, and never ends some."""

from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import CONFIGMAPS, NODES, PODS


async def config(lab: ControlPlaneLab, name: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    body = {"metadata": {"name": name, "ownerReferences": references, **metadata}}
    made: dict[str, Any] = await lab.api.create(CONFIGMAPS.as_dicts(), body, "default")
    await lab.clock.sleep(0.1)
    return made


async def left(lab: ControlPlaneLab) -> list[str]:
    await lab.clock.sleep(1)
    found = [each["metadata"]["name"] for each in await lab.all(CONFIGMAPS, "default")]
    return sorted(name for name in found if name != "kube-root-ca.crt")


async def test_in_the_background_the_whole_line_goes(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    child = await config(lab, "child", await config(lab, "parent"))
    await config(lab, "grandchild", child)
    await lab.api.delete(CONFIGMAPS, "parent", "default")
    assert await left(lab) == []


async def test_in_the_foreground_the_owner_goes_last(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    await config(lab, "child", await config(lab, "parent"), finalizers=["example.com/wait"])
    await lab.api.delete(CONFIGMAPS, "parent", "default", propagation="Foreground")
    assert await left(lab) == ["child", "parent"]
    await lab.api.merge_patch(CONFIGMAPS, "child", {"metadata": {"finalizers": None}}, "default")
    assert await left(lab) == []


async def test_orphans_stay_and_lose_the_reference(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    await config(lab, "child", await config(lab, "parent"))
    await lab.api.delete(CONFIGMAPS, "parent", "default", propagation="Orphan")
    assert await left(lab) == ["child"]
    assert not (await lab.get(CONFIGMAPS, "child"))["metadata"].get("ownerReferences")


async def test_one_living_owner_is_enough(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    first, second = await config(lab, "first"), await config(lab, "second")
    await config(lab, "child", first, second)
    await lab.api.delete(CONFIGMAPS, "first", "default")
    assert await left(lab) == ["child", "second"]
    owners = (await lab.get(CONFIGMAPS, "child"))["metadata"]["ownerReferences"]
    assert [each["name"] for each in owners] == ["second"]


async def test_a_child_of_an_owner_that_never_was_goes(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    await lab.clock.sleep(1)
    await config(lab, "child", {"metadata": {"name": "ghost", "uid": "00000000-0000-4000-8000-000000000000"}})
    assert await left(lab) == []


async def test_an_owner_of_the_same_name_but_another_life_does_not_count(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    old = await config(lab, "parent")
    await lab.api.delete(CONFIGMAPS, "parent", "default")
    await config(lab, "parent")
    await config(lab, "child", old)
    assert await left(lab) == ["parent"]


async def test_pods_of_a_node_that_is_gone_are_ended(lab: ControlPlaneLab) -> None:
    lab.start_workloads()
    await lab.api.create(NODES.as_dicts(), {"metadata": {"name": "n1"}})
    await lab.pod("p", nodeName="n1")
    await lab.clock.sleep(1)
    await lab.api.delete(NODES, "n1")
    await lab.clock.sleep(30)
    assert await lab.exists(PODS, "p")
    await lab.clock.sleep(15)
    assert not await lab.exists(PODS, "p")
