"""What Kueue charges by the Configuration that Tessera writes, and that Kueue reads every field of it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.api_clients import ADMINISTRATORS, in_process_client

from tessera.api.names import QUOTA_RESOURCE
from tessera.api.problems import FileRefused
from tessera.cli.main import main
from tessera.clock import LoopClock
from tessera.kube.resources import CRDS, NAMESPACES, Node, NodeStatus, ObjectMeta
from tessera.kube.resources.meta import resource_for
from tessera.kueue.configuration import (
    OWN_PREFIX,
    CardPool,
    SideQuota,
    TeamQuota,
    extend_configuration,
    find_excess,
    make_configuration,
    make_queues,
    pools_of,
    write_configuration,
)
from tessera.kueue.objects import CHARGED_RESOURCE, VERSIONS, Version
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.kueue.stand_in import make_definitions
from tessera_lab.simulation.virtual_time import run_virtual

EXAMPLE = Path(__file__).parents[2] / "examples" / "kueue" / "configuration.yaml"
PROFILES = ("1g.5gb", "1g.5gb+me", "3g.20gb")


class Transformation(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """``ResourceTransformation`` by the published names of its fields."""

    input: str
    strategy: str
    outputs: dict[str, str]
    multiply_by: str = ""


class Resources(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """``Resources``."""

    transformations: list[Transformation]
    exclude_resource_prefixes: list[str] = []
    quota_check_strategy: str = ""
    device_class_mappings: list[Any] = []


class Configuration(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The top of the Configuration, with the parts that a site's may have."""

    api_version: str
    kind: str
    resources: Resources
    integrations: Any = None
    wait_for_pods_ready: Any = None


def read(text: str) -> Configuration:
    """As Kueue does: a field that it does not know is an error."""
    return msgspec.convert(yaml.safe_load(text), Configuration)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_written_text_has_only_fields_of_kueue_and_reads_back_as_it_was_made(version: Version) -> None:
    made = make_configuration(PROFILES, version)
    text = write_configuration(made)
    assert yaml.safe_load(text) == made
    assert read(text) == Configuration(
        api_version=f"config.kueue.x-k8s.io/{version}",
        kind="Configuration",
        resources=Resources(
            exclude_resource_prefixes=[OWN_PREFIX],
            transformations=[
                Transformation("nvidia.com/mig-1g.5gb", "Replace", {CHARGED_RESOURCE: "5Gi"}),
                Transformation("nvidia.com/mig-1g.5gb.me", "Replace", {CHARGED_RESOURCE: "5Gi"}),
                Transformation("nvidia.com/mig-3g.20gb", "Replace", {CHARGED_RESOURCE: "20Gi"}),
            ],
        ),
    )


def test_no_input_is_named_twice_and_no_output_is_the_resource_of_pods() -> None:
    rules = read(write_configuration(make_configuration([*PROFILES, *PROFILES], "v1beta2"))).resources.transformations
    inputs = [rule.input for rule in rules]
    assert len(set(inputs)) == len(inputs)
    assert all(QUOTA_RESOURCE not in rule.outputs for rule in rules)


def test_the_example_is_what_the_command_writes_for_all_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kueue", "config", "--models", "all"]) == 0
    comments, _, rest = EXAMPLE.read_text(encoding="utf-8").partition("apiVersion:")
    assert all(line.startswith("#") for line in comments.splitlines())
    assert f"apiVersion:{rest}" == capsys.readouterr().out


def site(**resources: Any) -> dict[str, Any]:
    """A site's Configuration."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "waitForPodsReady": {"timeout": "5m"},
        **({"resources": resources} if resources else {}),
    }


def test_a_sites_configuration_keeps_everything_else() -> None:
    rule = {"input": "nvidia.com/gpu", "strategy": "Retain", "outputs": {"example.com/credits": "10"}}
    extended, notes = extend_configuration(site(transformations=[rule]), PROFILES)
    assert notes == []
    assert {**extended, "resources": None} == {**site(), "resources": None}
    assert extended["resources"]["transformations"][0] == rule
    assert len(extended["resources"]["transformations"]) == 4
    assert read(write_configuration(extended)).integrations == {"frameworks": ["batch/job", "pod"]}
    assert extend_configuration(extended, PROFILES) == (extended, [])


@pytest.mark.parametrize("prefix", ["nvidia.com/mig-", "nvidia.com/", "nvidia.com/mig-3g"])
def test_a_prefix_that_hides_slices_is_taken_out_and_told(prefix: str) -> None:
    extended, notes = extend_configuration(site(excludeResourcePrefixes=[prefix, "example.com/"]), PROFILES)
    assert extended["resources"]["excludeResourcePrefixes"] == ["example.com/", OWN_PREFIX]
    assert notes == [f'the prefix "{prefix}" is no longer excluded: Kueue would drop slices before it charges them']


def test_a_transformation_into_the_resource_of_pods_is_replaced_and_told() -> None:
    double = {"input": "nvidia.com/mig-3g.20gb", "strategy": "Replace", "outputs": {QUOTA_RESOURCE: "20Gi"}}
    extended, notes = extend_configuration(site(transformations=[double]), PROFILES)
    assert double not in extended["resources"]["transformations"]
    assert notes == ["the transformation of nvidia.com/mig-3g.20gb is replaced"]


def test_no_prefix_is_excluded_where_undeclared_resources_are_ignored() -> None:
    extended, notes = extend_configuration(
        site(quotaCheckStrategy="IgnoreUndeclared", excludeResourcePrefixes=["example.com/"]), PROFILES
    )
    assert "excludeResourcePrefixes" not in extended["resources"]
    assert notes == ["excludeResourcePrefixes is removed: Kueue refuses it beside quotaCheckStrategy"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "ConfigMap"}, "kind: is not Configuration; give the text of Kueue's controller_manager_config"),
        (None, "kind: is not Configuration; give the text of Kueue's controller_manager_config"),
        (site(transformations={"a": 1}), "resources.transformations: is not a list"),
        (site(transformations=["a"]), "resources.transformations: is not a mapping of names to values"),
        (site(excludeResourcePrefixes="a"), "resources.excludeResourcePrefixes: is not a list"),
    ],
)
def test_what_is_no_configuration_is_refused_by_its_field(document: Any, problem: str) -> None:
    with pytest.raises(FileRefused) as refused:
        extend_configuration(document, PROFILES)
    assert str(refused.value) == problem


def test_the_command_extends_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kueue.yaml"
    file.write_text(yaml.safe_dump(site(excludeResourcePrefixes=["nvidia.com/mig-"])), encoding="utf-8")
    assert main(["kueue", "config", "--models", "A30", "--extend", str(file)]) == 0
    printed = capsys.readouterr()
    assert "note: the prefix" in printed.err
    assert read(printed.out).wait_for_pods_ready == {"timeout": "5m"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "T4"], "T4: the card has no MIG, so Kueue has no slices to charge"),
        (["--models", "A101"], 'no GPU model "A101"'),
    ],
)
def test_a_model_without_slices_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kueue", "config", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_queues_that_count_slices_keep_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kueue", "config", "--count-slices"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["resources"] == {"excludeResourcePrefixes": ["instaslice.redhat.com/"]}
    (tmp_path / "kueue.yaml").write_text("kind: Configuration\nintegrations: {frameworks: [batch/job]}\n")
    assert main(["kueue", "config", "--count-slices", "--extend", str(tmp_path / "kueue.yaml")]) == 0
    extended = yaml.safe_load(capsys.readouterr().out)
    assert extended["resources"] == {"excludeResourcePrefixes": ["instaslice.redhat.com/"]}
    assert extended["integrations"] == {"frameworks": ["batch/job"]}


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
