"""A policy is ready when its nodes have the driver that it names, and at no moment before; a host's driver stays."""

from pathlib import Path
from typing import Any

from tests.cluster.driverlab import NEWER, VERSION, Drivers, node, play, precompiled
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.resources import DAEMONSETS, NODES

K = "5.15.0-69-generic"
IMAGES = {**precompiled(K), **precompiled(K, NEWER)}
SKIP = "nvidia.com/gpu-driver-upgrade.skip"


async def status(lab: Drivers) -> dict[str, Any]:
    found = await lab.client.get(CLUSTER_POLICIES, "cluster-policy")
    return dict(found.get("status") or {})


async def message(lab: Drivers) -> str:
    shown = await status(lab)
    (ready,) = (each for each in shown.get("conditions") or () if each["type"] == "Ready")
    return f"{shown['state']}: {ready['message']}"


async def messages_until(lab: Drivers, end: str, seconds: float) -> list[str]:
    """Every text of the policy, up to the one that is awaited."""
    found: list[str] = []
    while not found or end not in found[-1]:
        seconds -= 1.0
        assert seconds > 0, found
        now = await message(lab)
        found += [now] if found[-1:] != [now] else []
        await lab.clock.sleep(1.0)
    return found


def test_a_policy_is_not_ready_before_all_its_nodes_have_what_it_names(tmp_path: Path) -> None:
    async def scenario(lab: Drivers) -> None:
        names = ("a", "b", "c")
        await lab.policy(upgradePolicy={"autoUpgrade": False})
        await lab.served(*names)
        await messages_until(lab, "ready: all 3 nodes have their driver", 60.0)
        # Only the version changes, and nobody asks for a rollout.
        await lab.policy(version=NEWER, upgradePolicy={"autoUpgrade": False})
        await lab.clock.sleep(30.0)
        assert await message(lab) == f"notReady: 0 of 3 nodes have {NEWER}; autoUpgrade is off"
        assert all(lab.condition("GpuDriverReady", name)[:2] == ("False", "Outdated") for name in names)
        assert all(lab.gpus(name) == {"nvidia.com/gpu": 1} for name in names)
        # A rollout, from which a label keeps one node: no text between its nodes says that it is ready.
        await lab.client.merge_patch(NODES.as_dicts(), "c", {"metadata": {"labels": {SKIP: "true"}}})
        await lab.policy(version=NEWER)
        seen = await messages_until(lab, f"2 of 3 nodes have {NEWER}", 3600.0)
        assert [text for text in seen if not text.startswith("notReady: ")] == []
        assert await message(lab) == f"notReady: 2 of 3 nodes have {NEWER}; c: label {SKIP}=true keeps it out"
        await lab.client.merge_patch(NODES.as_dicts(), "c", {"metadata": {"labels": {SKIP: None}}})
        seen = await messages_until(lab, "ready: all", 3600.0)
        assert [text for text in seen if text.startswith("ready")] == ["ready: all 3 nodes have their driver"]
        # The other way round is a change, too.
        await lab.policy(version=VERSION, upgradePolicy={"autoUpgrade": False})
        await lab.clock.sleep(30.0)
        assert await message(lab) == f"notReady: 0 of 3 nodes have {VERSION}; autoUpgrade is off"

    play(tmp_path, scenario, [node(name) for name in "abc"], IMAGES)


def test_hosts_with_a_driver_count_as_pre_installed_and_get_no_driver_pod(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.clock.sleep(10.0)
        driver = {"repository": "nvcr.io/nvidia", "image": "driver", "version": VERSION}
        await lab.client.apply(CLUSTER_POLICIES, "cluster-policy", {"spec": {"driver": driver}})
        await lab.clock.sleep(30.0)
        found = await lab.client.get(CLUSTER_POLICIES, "cluster-policy")
        (ready,) = (each for each in found["status"]["conditions"] if each["type"] == "Ready")
        assert ready["message"] == "all 2 nodes have their driver, pre-installed"
        for name in ("node-1", "node-2"):
            node = await lab.client.get(NODES, name)
            assert node.metadata.annotations["tessera.dev/host-driver"]
            assert "tessera.dev/driver-set" not in node.metadata.labels
        sets = (await lab.client.list(DAEMONSETS, "tessera-system")).items
        assert not [each.metadata.name for each in sets if each.metadata.name.startswith("tessera-driver")]

    in_lab(scenario, nodes="A100-40GB,A100-40GB")
