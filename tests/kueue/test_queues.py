"""The flavors and queues that Tessera writes are stored by an API server that knows only Kueue's fields."""

from typing import Any

import pytest
import yaml
from tests.support.api_clients import ADMINISTRATORS, in_process_client

from tessera.cli.main import main
from tessera.clock import LoopClock
from tessera.kube.resources import CRDS, NAMESPACES, Node, NodeStatus, ObjectMeta
from tessera.kube.resources.meta import resource_for
from tessera.kueue.names import CHARGED_RESOURCE, VERSIONS, Version
from tessera.kueue.queues import (
    CardPool,
    SideQuota,
    TeamQuota,
    find_excess,
    make_queues,
    pools_of,
)
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.kueue.stand_in import make_definitions
from tessera_lab.simulation.virtual_time import run_virtual

POOL = CardPool(flavor="gpu-memory", gigabytes=160, cpu=64, memory=2**40)
TEAM = TeamQuota(namespace="team-a", gigabytes={"gpu-memory": 80})


def node(name: str, product: str, gigabytes: int) -> Node:
    """A node whose cards have slices on demand."""
    allocatable = {
        "instaslice.redhat.com/accelerator-memory-quota": f"{gigabytes}Gi",
        "cpu": "32",
        "memory": "256Gi",
    }
    labels = {"nvidia.com/gpu.product": product}
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=NodeStatus(allocatable=allocatable))


async def store(objects: list[dict[str, Any]], version: Version) -> None:
    """Stores the objects with strict validation.

    Raises:
        ApiError: a field is unknown or has another type.
    """
    clock = LoopClock(1_700_000_000)
    server = ApiServer(clock)
    client = in_process_client(server, clock, "admin", ADMINISTRATORS)
    for definition in make_definitions(version):
        await client.create(CRDS.as_dicts(), definition)
    await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "team-a"}})
    await clock.sleep(1)
    for each in objects:
        path = resource_for(each).path(each["metadata"].get("namespace"))
        await client.request("POST", path, query=[("fieldValidation", "Strict")], body=each)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("checked", [False, True])
def test_every_object_is_stored_in_strict_validation(version: Version, checked: bool) -> None:
    pools = [POOL, CardPool(flavor="h100", node_labels={"nvidia.com/gpu.product": "NVIDIA-H100"}, gigabytes=80)]
    objects = make_queues(
        pools, [TEAM], version=version, side=SideQuota(cpu="64", memory="1Ti"), local_queue="slices", checked=checked
    )

    async def scenario() -> None:
        await store(objects, version)

    run_virtual(scenario())


def test_a_field_that_kueue_does_not_have_is_refused() -> None:
    """The proof that the test above would see one."""

    async def scenario() -> None:
        (flavor, *_) = make_queues(
            [POOL], [TEAM], version="v1beta2", side=SideQuota(), local_queue="slices", checked=False
        )
        await store([{**flavor, "spec": {"labels": {}}}], "v1beta2")

    with pytest.raises(Exception, match="unknown field"):
        run_virtual(scenario())


def test_a_team_gets_its_memory_in_each_flavor_and_what_its_pods_ask_for_beside() -> None:
    objects = make_queues(
        [POOL], [TEAM], version="v1beta2", side=SideQuota(cpu="8"), local_queue="slices", checked=False
    )
    (queue,) = [each for each in objects if each["kind"] == "ClusterQueue"]
    (group,) = queue["spec"]["resourceGroups"]
    assert group["coveredResources"] == ["cpu", CHARGED_RESOURCE]
    assert group["flavors"] == [
        {
            "name": "gpu-memory",
            "resources": [
                {"name": "cpu", "nominalQuota": "8"},
                {"name": CHARGED_RESOURCE, "nominalQuota": "80Gi"},
            ],
        }
    ]


def test_nodes_of_one_product_share_a_flavor_with_their_label() -> None:
    nodes = [node("a", "NVIDIA-A100_40", 160), node("b", "NVIDIA-A100_40", 160), node("c", "NVIDIA-H100", 80)]
    assert pools_of(nodes, by_model=True) == [
        CardPool(
            flavor="nvidia-a100-40",
            node_labels={"nvidia.com/gpu.product": "NVIDIA-A100_40"},
            gigabytes=320,
            cpu=64,
            memory=2 * 256 * 2**30,
        ),
        CardPool(
            flavor="nvidia-h100",
            node_labels={"nvidia.com/gpu.product": "NVIDIA-H100"},
            gigabytes=80,
            cpu=32,
            memory=256 * 2**30,
        ),
    ]
    assert [pool.gigabytes for pool in pools_of(nodes, by_model=False)] == [400]


def test_a_node_without_slices_or_with_a_spoiled_amount_is_left_out() -> None:
    spoiled = Node(status=NodeStatus(allocatable={"instaslice.redhat.com/accelerator-memory-quota": "much"}))
    assert pools_of([Node(), spoiled], by_model=False) == []


def test_quotas_above_the_cards_are_told() -> None:
    more = TeamQuota(namespace="team-b", gigabytes={"gpu-memory": 100})
    assert find_excess([POOL], [TEAM]) == []
    (told,) = find_excess([POOL], [TEAM, more])
    assert told.startswith("flavor gpu-memory: the teams' quotas are 180Gi together, and slices can have 160Gi: ")


def test_the_command_writes_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    cards = ["--models", "4xA100-40GB,H100-80GB", "--by-model", "--cpu", "64", "--memory", "256Gi"]
    flavors = "team-a=nvidia-a100-sxm4-40gb:80Gi,nvidia-h100-80gb-hbm3:40Gi"
    assert main(["kueue", "queues", *cards, "--team", flavors]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["kind"] for each in objects] == [
        "ResourceFlavor",
        "ResourceFlavor",
        "AdmissionCheck",
        "ClusterQueue",
        "LocalQueue",
    ]
    amounts = [flavor["resources"][-1] for flavor in objects[3]["spec"]["resourceGroups"][0]["flavors"]]
    assert [each["nominalQuota"] for each in amounts] == ["80Gi", "40Gi"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--team", "team-a=80"], "write NAMESPACE=80Gi"),
        (["--team", "Team=80Gi"], "write NAMESPACE=80Gi"),
        (["--team", "team-a=x:80Gi"], "there is no flavor x; the flavors are gpu-memory"),
        (["--team", "team-a=80Gi", "--cpu", "many"], "a number is expected"),
        (["--team", "team-a=80Gi", "--team", "team-a=40Gi"], "names team-a twice"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    cards = ["--models", "A30", "--memory", "1Gi", *([] if "--cpu" in arguments else ["--cpu", "1"])]
    assert main(["kueue", "queues", *cards, *arguments]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_models_alone_say_nothing_about_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kueue", "queues", "--models", "A30", "--team", "team-a=8Gi"]) == 1
    assert "add --cpu and --memory" in capsys.readouterr().err
