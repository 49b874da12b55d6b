"""A sharing profile is read strictly, and every file that NVIDIA's device plugin loads is read too."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.problems import FileRefused
from tessera.api.sharing.devices import SharingKind
from tessera.api.sharing.profile import AllocationPolicy, Flags, MigStrategy, ResourcePattern, Selection, SharingProfile
from tessera.api.sharing.profile_parser import WITHOUT_EFFECT, parse_profile

GPU = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
MIG = "MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"
OLD = "MIG-GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2/10/0"

ARTICLE = """\
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


def entry(kind: str = "timeSlicing", /, **fields: Any) -> str:
    return json.dumps({"sharing": {kind: {"resources": [{"name": "gpu", "replicas": 2, **fields}]}}})


def refused(text: str) -> list[str]:
    with pytest.raises(FileRefused) as error:
        parse_profile(text)
    return [str(each) for each in error.value.problems]


def test_the_profile_of_the_article() -> None:
    profile = parse_profile(ARTICLE)
    (block,) = profile.blocks
    assert block is not None
    assert block.one_per_request
    assert [(each.name, each.advertised, each.replicas) for each in block.resources] == [
        ("nvidia.com/gpu", "nvidia.com/gpu.shared", 4)
    ]
    assert block.kind is SharingKind.TIME_SLICING
    assert profile.notices == ()
    assert profile.flags == Flags()


@pytest.mark.parametrize("text", ["", "{}", "version: v1", 'version: ""', "flags:\nresources:\nsharing:\nimex:\n"])
def test_a_file_that_says_nothing_is_a_profile_that_shares_nothing(text: str) -> None:
    assert parse_profile(text) == SharingProfile()


def test_another_version_is_refused() -> None:
    assert refused("version: v2") == ['version: "v2" is not known; write "v1" or leave it out']


@pytest.mark.parametrize(
    ("text", "path", "meant"),
    [
        (ARTICLE.replace("replicas", "replica"), "sharing.timeSlicing.resources[0].replica", "replicas"),
        (ARTICLE.replace("timeSlicing", "timeSlice"), "sharing.timeSlice", "timeSlicing"),
        ("flag: {}", "flag", "flags"),
        ("flags: {migstrateg: single}", "flags.migstrateg", "migStrategy"),
        ("resources: {gpu: []}", "resources.gpu", "gpus"),
        (entry(device="all"), "sharing.timeSlicing.resources[0].device", "devices"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_what_was_meant(text: str, path: str, meant: str) -> None:
    problem = refused(text)[0]
    assert problem.startswith(f"{path}: ")
    for fact in ("unknown", f"did you mean {meant}?"):
        assert fact in problem


def test_an_unknown_key_like_no_other_is_refused_with_the_keys_that_exist() -> None:
    problem = refused("flags: {plugin: {colour: red}}")[0]
    for fact in ("flags.plugin.colour: ", "unknown", "the keys here are cdiAnnotationPrefix"):
        assert fact in problem


@pytest.mark.parametrize(
    ("devices", "selection"),
    [
        ("all", Selection()),
        (2, Selection(count=2)),
        ([0], Selection(refs=("0",))),
        (["0"], Selection(refs=("0",))),
        (["0:0"], Selection(refs=("0:0",))),
        ([GPU], Selection(refs=(GPU,))),
        ([MIG], Selection(refs=(MIG,))),
        ([OLD], Selection(refs=(OLD,))),
        ([0, "0:0", GPU], Selection(refs=("0", "0:0", GPU))),
        (["0", "0:0", GPU], Selection(refs=("0", "0:0", GPU))),
        ([1, "1"], Selection(refs=("1",))),
    ],
)
def test_devices_take_every_form(devices: Any, selection: Selection) -> None:
    (block,) = parse_profile(entry(devices=devices)).blocks
    assert block is not None
    assert block.resources[0].devices == selection
    assert selection.all == (devices == "all")


@pytest.mark.parametrize(
    "devices",
    [
        "not-all",
        *(-2, 0, 2.0, True, {}, []),
        *([-1], ["-1"], [True], [[0]], ["0:0:0"]),
        *(["invalid-UUID"], ["GPU-UUID"], ["MIG-UUID"], [OLD.split("/", maxsplit=1)[0]]),
    ],
)
def test_other_devices_are_refused_by_path(devices: Any) -> None:
    (problem,) = refused(entry(devices=devices))
    assert problem.startswith("sharing.timeSlicing.resources[0].devices")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"replicas": None}, "replicas: no replicas specified"),
        ({"name": None}, "name: no resource name specified"),
        ({"replicas": 1}, "replicas: must be 2 or more, not 1"),
        ({"replicas": 0}, "replicas: must be 2 or more, not 0"),
        ({"replicas": -1}, "replicas: must be 2 or more, not -1"),
        ({"replicas": "4"}, 'replicas: must be a whole number, not "4"'),
        ({"name": "$invalid$"}, 'name: "$invalid$" is no resource name'),
        ({"name": "amd.com/gpu"}, 'name: "amd.com/gpu" is no resource name'),
        ({"name": "GPU"}, 'name: "GPU" is no resource name'),
        ({"rename": "$invalid$"}, 'rename: "$invalid$" is no resource name'),
        ({"name": "a" * 53}, "has 64 characters; 63 is the most"),
    ],
)
def test_an_entry_that_is_wrong_is_refused_by_path(fields: dict[str, Any], words: str) -> None:
    (problem,) = refused(entry(**fields))
    assert problem.startswith("sharing.timeSlicing.resources[0].")
    assert words in problem


def test_more_replicas_than_are_allowed_are_refused_with_the_most() -> None:
    (problem,) = refused(entry(replicas=32_769))
    assert problem.startswith("sharing.timeSlicing.resources[0].replicas: ")
    for fact in ("is 32,769", "at most 32,768 replicas of one device"):
        assert fact in problem


@pytest.mark.parametrize("kind", ["timeSlicing", "mps"])
@pytest.mark.parametrize("block", [{}, {"resources": []}, {"resources": None}])
def test_a_block_without_resources_is_refused(kind: str, block: dict[str, Any]) -> None:
    (problem,) = refused(json.dumps({"sharing": {kind: block}}))
    assert problem.startswith(f"sharing.{kind}.resources: no resources specified")


@pytest.mark.parametrize(
    ("rename_by_default", "rename", "advertised"),
    [
        (False, None, "nvidia.com/gpu"),
        (True, None, "nvidia.com/gpu.shared"),
        (True, "small-gpu", "nvidia.com/small-gpu"),
        (False, "nvidia.com/small-gpu", "nvidia.com/small-gpu"),
        (True, "", "nvidia.com/gpu.shared"),
    ],
)
def test_shares_are_renamed_by_entry_or_by_default(
    rename_by_default: bool, rename: str | None, advertised: str
) -> None:
    resource = {"name": "gpu", "replicas": 2, "rename": rename}
    block = {"renameByDefault": rename_by_default, "resources": [resource]}
    (parsed,) = parse_profile(json.dumps({"sharing": {"timeSlicing": block}})).blocks
    assert parsed is not None
    assert parsed.resources[0].advertised == advertised


def test_a_name_that_renaming_makes_too_long_is_refused() -> None:
    name = "a" * 50
    block = {"renameByDefault": True, "resources": [{"name": name, "replicas": 2}]}
    (problem,) = refused(json.dumps({"sharing": {"timeSlicing": block}}))
    assert "68 characters; 63 is the most: set rename" in problem


@pytest.mark.parametrize(
    ("kind", "written", "one"),
    [
        ("timeSlicing", None, False),
        ("timeSlicing", True, True),
        ("timeSlicing", False, False),
        ("mps", None, True),
        ("mps", False, False),
        ("mps", True, True),
    ],
)
def test_requests_above_one_fail_by_default_with_mps_only(kind: str, written: bool | None, one: bool) -> None:
    block = {"failRequestsGreaterThanOne": written, "resources": [{"name": "gpu", "replicas": 2}]}
    (parsed,) = parse_profile(json.dumps({"sharing": {kind: block}})).blocks
    assert parsed.one_per_request is one
    assert parsed.kind is (SharingKind.MPS if kind == "mps" else SharingKind.TIME_SLICING)


def test_several_resources_stay_in_order() -> None:
    entries = [{"name": "gpu", "replicas": 4, "devices": [0]}, {"name": "mig-1g.5gb", "replicas": 2}]
    (block,) = parse_profile(json.dumps({"sharing": {"timeSlicing": {"resources": entries}}})).blocks
    assert block is not None
    assert [each.name for each in block.resources] == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]
    assert block.resources[1].path == "sharing.timeSlicing.resources[1]"


def test_both_blocks_are_kept_and_it_is_said_which_counts() -> None:
    block = {"resources": [{"name": "gpu", "replicas": 2}]}
    profile = parse_profile(json.dumps({"sharing": {"timeSlicing": block, "mps": block}}))
    assert [each.kind for each in profile.blocks] == [SharingKind.MPS, SharingKind.TIME_SLICING]
    assert "MPS counts" in profile.notices[0].text


def test_every_key_of_upstream_is_accepted_and_those_without_effect_are_told() -> None:
    profile = parse_profile("""
        version: v1
        flags:
          migStrategy: mixed
          failOnInitError: true
          mpsRoot: /run/nvidia/mps
          nvidiaDriverRoot: /run/nvidia/driver
          nvidiaDevRoot: /
          gdrcopyEnabled: false
          gdsEnabled: false
          mofedEnabled: false
          useNodeFeatureAPI: true
          deviceDiscoveryStrategy: auto
          plugin:
            passDeviceSpecs: true
            deviceListStrategy: [envvar, cdi-cri]
            deviceIDStrategy: index
            cdiAnnotationPrefix: cdi.k8s.io/
            nvidiaCTKPath: /usr/bin/nvidia-ctk
            containerDriverRoot: /driver-root
            sharedDevicesAllocationPolicy: packed
          gfd:
            oneshot: false
            noTimestamp: true
            sleepInterval: 60s
            outputFile: /etc/kubernetes/node-feature-discovery/features.d/gfd
            machineTypeFile: /sys/class/dmi/id/product_name
        resources:
          gpus:
          - {pattern: "*A100*", name: gpu-a100}
          mig:
          - {pattern: "1g.5gb", name: nvidia.com/small}
        imex:
          channelIDs: [0]
          required: false
    """)
    assert {each.path for each in profile.notices} == {*WITHOUT_EFFECT, "imex.channelIDs"}
    assert profile.flags.timestamp is False
    assert profile.flags.imex_channels == (0,)
    assert profile.flags.extras == ()
    assert profile.flags.mig_strategy is MigStrategy.MIXED
    assert profile.flags.driver_root == "/run/nvidia/driver"
    assert profile.flags.pass_device_specs is True
    assert profile.flags.device_list_strategies == ("envvar", "cdi-cri")
    assert profile.flags.device_ids_are_uuids is False
    assert profile.flags.allocation_policy is AllocationPolicy.PACKED
    assert profile.gpus == (ResourcePattern("*A100*", "nvidia.com/gpu-a100"),)
    assert profile.mig == (ResourcePattern("1g.5gb", "nvidia.com/small"),)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("flags: {migStrategy: both}", "flags.migStrategy"),
        ("flags: {plugin: {deviceListStrategy: env}}", "flags.plugin.deviceListStrategy"),
        ("flags: {plugin: {deviceListStrategy: [envvar, env]}}", "flags.plugin.deviceListStrategy[1]"),
        ("flags: {plugin: {deviceListStrategy: []}}", "flags.plugin.deviceListStrategy"),
        ("flags: {plugin: {deviceIDStrategy: name}}", "flags.plugin.deviceIDStrategy"),
        ("flags: {plugin: {sharedDevicesAllocationPolicy: spread}}", "flags.plugin.sharedDevicesAllocationPolicy"),
        ("flags: {deviceDiscoveryStrategy: guess}", "flags.deviceDiscoveryStrategy"),
        ("flags: {failOnInitError: 1}", "flags.failOnInitError"),
        ("flags: {gfd: {sleepInterval: [60]}}", "flags.gfd.sleepInterval"),
        ("flags: {gfd: {oneshot: once}}", "flags.gfd.oneshot"),
        ("imex: {channelIDs: [2]}", "imex.channelIDs"),
        ("resources: {gpus: [{pattern: '*'}]}", "resources.gpus[0]"),
        ("resources: {mig: [{name: gpu}]}", "resources.mig[0]"),
        ("resources: {gpus: '*'}", "resources.gpus"),
        ("sharing: []", "sharing"),
        ("[]", ""),
    ],
)
def test_a_value_that_is_none_of_those_allowed_is_refused_by_path(text: str, path: str) -> None:
    (problem,) = refused(text)
    assert problem.startswith(f"{path}: " if path else "must be a mapping")


def test_what_the_runtime_gives_beside_cards_is_passed_on_and_its_limits_are_told() -> None:
    profile = parse_profile("flags: {gdrcopyEnabled: true, gdsEnabled: true, mofedEnabled: true}")
    assert profile.flags.extras == ("gdrcopy", "gds", "mofed")
    assert [each.path for each in profile.notices] == [
        "flags.gdrcopyEnabled",
        "flags.gdsEnabled",
        "flags.mofedEnabled",
    ]
    assert profile.notices[1].text.startswith("containers get NVIDIA_GDS=enabled")


@pytest.mark.parametrize("ids", ["{}", "channelIDs: null", "channelIDs: []", "channelIDs: [0]"])
def test_imex_channels_are_none_or_the_first(ids: str) -> None:
    parse_profile(f"imex: {{{ids.strip('{}')}}}")


def test_all_mistakes_are_told_at_once() -> None:
    text = ARTICLE.replace("replicas: 4", "replicas: 1").replace("renameByDefault", "renameDefault") + "x: 1\n"
    assert len(refused(text)) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["all", "gpu", "v1", "mixed", "1g.5gb", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["sharing", "mps", "timeSlicing", "resources", "name", "replicas", "flags", "gpus", "plugin"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_document_is_read_or_refused_with_reasons(document: Any) -> None:
    with suppress(FileRefused):
        parse_profile(json.dumps({"sharing": document, "flags": document, "resources": document}))
