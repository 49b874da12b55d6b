"""Claims and volumes: where they let a pod go, and how the scheduler, the binder and the provisioner work together."""

from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import (
    CSI_NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STATEFULSETS,
    STORAGE_CLASSES,
)
from tessera_lab.workloads.storage import PROVISIONER

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
CLAIMS = PERSISTENT_VOLUME_CLAIMS


async def up(lab: ControlPlaneLab, *zones: str) -> None:
    """A whole cluster of one node a zone."""
    lab.start_controllers()
    for number, zone in enumerate(zones, 1):
        await lab.start_nodes(f"n{number}", labels={ZONE: zone})


async def storage_class(lab: ControlPlaneLab, name: str, mode: str, **more: Any) -> None:
    body = {"metadata": {"name": name}, "provisioner": PROVISIONER, "volumeBindingMode": mode, **more}
    await lab.api.create(STORAGE_CLASSES.as_dicts(), body)


def claim_spec(kind: str, mode: str = "ReadWriteOnce") -> dict[str, Any]:
    return {"storageClassName": kind, "accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}


async def claim(lab: ControlPlaneLab, name: str, kind: str, mode: str = "ReadWriteOnce") -> None:
    await lab.api.create(CLAIMS.as_dicts(), {"metadata": {"name": name}, "spec": claim_spec(kind, mode)}, "default")


async def volume(lab: ControlPlaneLab, name: str, host: str, kind: str = "local") -> None:
    test = {"key": HOST, "operator": "In", "values": [host]}
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": kind,
        "local": {"path": "/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [test]}]}},
    }
    await lab.api.create(PERSISTENT_VOLUMES.as_dicts(), {"metadata": {"name": name}, "spec": spec})


async def user(lab: ControlPlaneLab, name: str, of: str, **spec: Any) -> None:
    await lab.pod(name, "sleep", "9999", volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": of}}], **spec)


async def home(lab: ControlPlaneLab, name: str) -> str:
    return str((await lab.get(PODS, name))["spec"].get("nodeName", ""))


async def told(lab: ControlPlaneLab, name: str) -> str:
    conditions = (await lab.get(PODS, name))["status"]["conditions"]
    return str(next(each for each in conditions if each["type"] == "PodScheduled").get("message", ""))


async def test_an_immediate_claim_binds_and_then_leads_its_pod(lab: ControlPlaneLab) -> None:
    await up(lab, "a", "b")
    topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b"]}]}]
    await storage_class(lab, "now", "Immediate", parameters={"topologyKey": ZONE}, allowedTopologies=topology)
    await user(lab, "p", "c")
    await lab.clock.sleep(1)
    assert 'persistentvolumeclaim "c" not found' in await told(lab, "p")
    await claim(lab, "c", "now")
    await lab.clock.sleep(0.5)
    assert "pod has unbound immediate PersistentVolumeClaims" in await told(lab, "p")
    await lab.clock.sleep(5)
    assert (await lab.get(CLAIMS, "c"))["status"]["phase"] == "Bound"
    assert await home(lab, "p") == "n2"
    await user(lab, "q", "c", nodeSelector={HOST: "n1"})
    await lab.clock.sleep(1)
    assert "1 node(s) didn't match PersistentVolume's node affinity" in await told(lab, "q")


async def test_a_claim_that_waits_gets_its_volume_where_the_pod_goes(lab: ControlPlaneLab) -> None:
    await up(lab, "a", "b")
    await storage_class(lab, "later", "WaitForFirstConsumer", parameters={"topologyKey": ZONE, "seconds": "7"})
    await claim(lab, "c", "later")
    await lab.clock.sleep(10)
    assert (await lab.get(CLAIMS, "c"))["status"]["phase"] == "Pending"
    await user(lab, "p", "c", nodeSelector={ZONE: "b"})
    await lab.clock.sleep(5)
    assert not await home(lab, "p")
    await lab.clock.sleep(5)
    assert await home(lab, "p") == "n2"
    (made,) = await lab.all(PERSISTENT_VOLUMES)
    assert made["status"]["phase"] == "Bound"
    (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": ["b"]}]


async def test_local_volumes_lead_a_pod_to_their_node_and_are_given_once(lab: ControlPlaneLab) -> None:
    await up(lab, "a", "b")
    await storage_class(lab, "local", "WaitForFirstConsumer", provisioner="kubernetes.io/no-provisioner")
    await volume(lab, "disk", "n2")
    await claim(lab, "c", "local")
    await claim(lab, "d", "local")
    await user(lab, "p", "c")
    await lab.clock.sleep(1)
    await user(lab, "q", "d")
    await lab.clock.sleep(5)
    assert (await home(lab, "p"), await home(lab, "q")) == ("n2", "")
    assert "2 node(s) didn't find available persistent volumes to bind" in await told(lab, "q")


async def test_a_claim_in_use_stays_until_its_pod_is_gone_and_takes_its_volume_along(lab: ControlPlaneLab) -> None:
    await up(lab, "a")
    await storage_class(lab, "now", "Immediate")
    await claim(lab, "c", "now")
    await user(lab, "p", "c", terminationGracePeriodSeconds=0)
    await lab.clock.sleep(5)
    await lab.api.delete(CLAIMS, "c", "default")
    await lab.clock.sleep(5)
    assert (await lab.get(CLAIMS, "c"))["metadata"]["deletionTimestamp"]
    await lab.api.delete(PODS, "p", "default")
    await lab.clock.sleep(5)
    assert not await lab.exists(CLAIMS, "c")
    assert not await lab.all(PERSISTENT_VOLUMES)


async def test_a_driver_attaches_so_many_volumes_to_a_node(lab: ControlPlaneLab) -> None:
    await up(lab, "a")
    driver = {"name": PROVISIONER, "nodeID": "n1", "allocatable": {"count": 1}}
    await lab.api.create(CSI_NODES.as_dicts(), {"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}})
    await storage_class(lab, "now", "Immediate")
    for name in ("c", "d"):
        await claim(lab, name, "now")
    await user(lab, "p", "c")
    await lab.clock.sleep(5)
    await user(lab, "q", "d")
    await user(lab, "r", "c")
    await lab.clock.sleep(1)
    assert "1 node(s) exceed max volume count" in await told(lab, "q")
    assert await home(lab, "r") == "n1"


async def test_a_claim_of_one_pod_is_of_one_pod(lab: ControlPlaneLab) -> None:
    await up(lab, "a")
    await storage_class(lab, "now", "Immediate")
    await claim(lab, "c", "now", "ReadWriteOncePod")
    await user(lab, "p", "c")
    await lab.clock.sleep(5)
    await user(lab, "q", "c")
    await lab.clock.sleep(1)
    assert "ReadWriteOncePod access mode" in await told(lab, "q")


async def test_an_ephemeral_volume_comes_and_goes_with_its_pod(lab: ControlPlaneLab) -> None:
    await up(lab, "a")
    await storage_class(lab, "later", "WaitForFirstConsumer")
    template = {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec("later")}}}
    await lab.pod("p", "sleep", "9999", volumes=[{"name": "d", **template}], terminationGracePeriodSeconds=0)
    await lab.clock.sleep(5)
    assert (await lab.get(CLAIMS, "p-d"))["status"]["phase"] == "Bound"
    assert await home(lab, "p") == "n1"
    await lab.api.delete(PODS, "p", "default")
    await lab.clock.sleep(5)
    assert not await lab.exists(CLAIMS, "p-d")


async def test_a_stateful_set_keeps_its_volumes_and_comes_back_to_them(lab: ControlPlaneLab) -> None:
    await up(lab, "a", "b", "c")
    await storage_class(lab, "later", "WaitForFirstConsumer", parameters={"topologyKey": HOST})
    labels = {"app": "s"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [{"name": "c", "image": "app", "command": ["sleep", "9999"]}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": template,
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": claim_spec("later")}],
    }
    await lab.api.create(STATEFULSETS.as_dicts(), {"metadata": {"name": "s"}, "spec": spec}, "default")
    await lab.clock.sleep(10)
    assert sorted(each["metadata"]["name"] for each in await lab.all(CLAIMS)) == ["d-s-0", "d-s-1"]
    before = [await home(lab, name) for name in ("s-0", "s-1")]
    assert all(before)
    for name in ("s-0", "s-1"):
        await lab.api.delete(PODS, name, "default")
    await lab.clock.sleep(10)
    assert [await home(lab, name) for name in ("s-0", "s-1")] == before
    assert len(await lab.all(CLAIMS)) == 2
