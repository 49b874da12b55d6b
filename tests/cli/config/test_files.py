"""`tessera config check` says what a file means, what has no effect and what is wrong."""

import pytest

from tessera.cli.config.files import check_file
from tessera.cli.config.parts import PartReport, parse_node

SLICES = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: nvidia-time-slicing-config
data:
  slice-4: |-
    version: v1
    sharing:
      timeSlicing:
        renameByDefault: true
        failRequestsGreaterThanOne: true
        resources:
        - name: nvidia.com/gpu
          replicas: 4
  slice-10: |-
    version: v1
    sharing:
      timeSlicing:
        resources:
        - name: nvidia.com/gpu
          replica: 10
"""
LAYOUTS = """\
version: v1
mig-configs:
  disabled:
  - devices: all
    mig-enabled: false
  2x2g.10gb-3x1g.5gb:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.5gb": 3, "2g.10gb": 2}
"""


def layout(devices: str, more: str = "") -> str:
    return f"version: v1\nmig-configs:\n  x:\n  - {{devices: all, mig-enabled: true, mig-devices: {devices}{more}}}\n"


def only(text: str, *nodes: str) -> PartReport:
    (part,) = check_file(text, [parse_node(each) for each in nodes])
    return part


def test_each_profile_of_a_config_map_is_judged_on_its_own() -> None:
    good, bad = check_file(SLICES, [parse_node("4xA100-40GB")])
    assert good.name == "nvidia-time-slicing-config/slice-4"
    sharing, total = good.means
    for fact in ("time slices", "each nvidia.com/gpu becomes 4 of nvidia.com/gpu.shared", "a container may ask for 1"):
        assert fact in sharing
    assert total == "on 4 x A100-40GB without MIG: nvidia.com/gpu.shared 16"
    assert good.problems == ()
    for fact in ("sharing.timeSlicing.resources[0].replica: ", "unknown", "did you mean replicas?"):
        assert fact in bad.problems[0]


def test_what_mps_gives_each_client_is_told() -> None:
    part = only("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}", "A100-40GB")
    for fact in ("on 1 x A100-40GB", "each client of nvidia.com/gpu", "10240 MiB", "25 % of the threads"):
        assert fact in part.means[-1]


@pytest.mark.parametrize("nodes", [(), ("2xA100-40GB",), ("2xA100-40GB", "T4")])
@pytest.mark.parametrize(
    ("entry", "more", "which"),
    [
        ("name: nvidia.com/mig-1g.5gb", "", "nvidia.com/mig-1g.5gb, which are MIG devices"),
        ("name: mig-3g.20gb, devices: 2", "", "nvidia.com/mig-3g.20gb, which are MIG devices"),
        ("name: mig-1g.5gb", "flags: {migStrategy: none}", "nvidia.com/mig-1g.5gb, which are MIG devices"),
        ("name: gpu, devices: ['0:1']", "", "MIG device 0:1"),
        ("name: gpu, devices: [0, '0:1', '1:0']", "", "MIG devices 0:1, 1:0"),
        (
            "name: gpu, devices: [MIG-998210af-9f07-5641-a3f8-444eb9707a14]",
            "flags: {migStrategy: single}",
            "MIG device MIG-998210af-9f07-5641-a3f8-444eb9707a14",
        ),
        ("name: small", "resources: {mig: [{pattern: '1g*', name: small}]}", "nvidia.com/small, which are MIG devices"),
    ],
)
def test_mps_on_mig_devices_is_wrong_with_and_without_a_node(
    entry: str, more: str, which: str, nodes: tuple[str, ...]
) -> None:
    part = only(f"{more}\nsharing: {{mps: {{resources: [{{{entry}, replicas: 2}}]}}}}", *nodes)
    (problem,) = part.problems
    assert problem.startswith(f"sharing.mps.resources[0]: MPS would share {which}; ")
    for fact in ("MPS shares whole cards only", "use timeSlicing", "or name whole cards"):
        assert fact in problem
    assert part.notices == ()
    assert not any("each client" in line for line in part.means)


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ("", "mps: {resources: [{name: gpu, replicas: 2}]}"),
        ("flags: {migStrategy: single}", "mps: {resources: [{name: gpu, devices: [0], replicas: 2}]}"),
        (
            "resources: {gpus: [{pattern: '*', name: any}], mig: [{pattern: '*', name: any}]}",
            "mps: {resources: [{name: any, replicas: 2}]}",
        ),
        ("resources: {gpus: [{pattern: '*', name: mig-no}]}", "mps: {resources: [{name: mig-no, replicas: 2}]}"),
        ("", "timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 2}]}"),
    ],
)
def test_what_can_be_a_whole_card_may_be_shared_by_mps_and_mig_devices_by_time(settings: str, shared: str) -> None:
    assert only(f"{settings}\nsharing: {{{shared}}}", "2xA100-40GB").problems == ()


def test_what_else_is_wrong_is_told_beside_mps_on_mig_devices() -> None:
    entries = "[{name: mig-1g.5gb, replicas: 2}, {name: gpu, devices: [3], replicas: 2}, {name: card, replicas: 2}]"
    part = only(f"sharing: {{mps: {{resources: {entries}}}}}", "2xA100-40GB")
    assert [each.partition(": ")[0] for each in part.problems] == ["sharing.mps.resources[0]", "on 2 x A100-40GB"]
    assert "resources[1].devices: 3 is no device of nvidia.com/gpu" in part.problems[1]


def test_a_client_has_no_part_of_what_the_node_does_not_have() -> None:
    part = only("sharing: {mps: {resources: [{name: card, replicas: 2}]}}", "A100-40GB")
    assert part.means[-1] == "on 1 x A100-40GB without MIG: nvidia.com/gpu 1"
    assert "nothing here is nvidia.com/card" in part.notices[0]


def test_a_profile_that_a_given_node_cannot_follow_is_wrong() -> None:
    part = only("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [3]}]}}", "2xA30")
    (problem,) = part.problems
    for fact in ("on 2 x A30: ", "sharing.timeSlicing.resources[0].devices: ", "3 is no device of nvidia.com/gpu"):
        assert fact in problem


def test_what_has_no_effect_is_told_with_the_reason() -> None:
    part = only("flags: {failOnInitError: true}\nresources: {gpus: [{pattern: '*', name: card}]}")
    assert part.means == ("devices like * are nvidia.com/card", "nothing is shared")
    for fact in ("flags.failOnInitError: no effect: ", "a node whose driver does not answer"):
        assert fact in part.notices[0]


@pytest.mark.parametrize(
    ("devices", "words"),
    [("[1, '0:1']", "nvidia.com/gpu 1, 0:1 becomes 2"), ("3", "each of the first 3 nvidia.com/gpu becomes 2")],
)
def test_the_devices_named_are_told(devices: str, words: str) -> None:
    part = only(f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2, devices: {devices}}}]}}}}")
    assert words in part.means[0]


def test_layouts_say_which_models_take_them() -> None:
    assert only(LAYOUTS).means == ("disabled: MIG mode off", "2x2g.10gb-3x1g.5gb: fits A100-40GB")
    assert only(layout("{'1g.10gb': 7}")).means == ("x: fits A100-80GB, H100-80GB",)
    assert only(layout("{}")).means == ("x: MIG mode on, without instances",)


def test_layouts_are_drawn_for_given_nodes() -> None:
    assert only(LAYOUTS, "4xA100-40GB").means == (
        "disabled on 4 x A100-40GB: no MIG devices",
        "  GPU 0, 1, 2, 3  [whole card]",
        "2x2g.10gb-3x1g.5gb on 4 x A100-40GB: nvidia.com/mig-1g.5gb 12, nvidia.com/mig-2g.10gb 8",
        "  GPU 0, 1, 2, 3  [2g.10gb         ][2g.10gb         ][1g.5gb ][1g.5gb ][1g.5gb ][       ]",
    )


def test_a_layout_for_another_model_is_no_mistake() -> None:
    part = only(LAYOUTS, "H100-80GB")
    assert part.problems == ()
    for fact in ("2x2g.10gb-3x1g.5gb on 1 x H100-80GB: ", "does not fit", "H100-80GB has no profile"):
        assert fact in part.means[-1]


@pytest.mark.parametrize(
    ("devices", "more", "words"),
    [
        ("{'3g.20gb': 2, '1g.5gb': 1}", "", "need 9 memory slots"),
        ("{'1g.5gb+me': 2}", "", "one set of media engines"),
        ("{'0g.0gb': 1}", "", "no model that Tessera knows has 0g.0gb"),
        ("{'1g.5gb': 7}", ", device-filter: '0x233010DE'", "no model that Tessera knows has 1g.5gb"),
    ],
)
def test_a_layout_that_no_model_takes_is_wrong(devices: str, more: str, words: str) -> None:
    part = only(layout(devices, more))
    assert part.problems[0].startswith("mig-configs.x[0].mig-devices: ")
    assert words in part.problems[0]
    assert part.means == ("x: fits no model that Tessera knows",)


@pytest.mark.parametrize(
    ("nodes", "means"),
    [
        ((), ("x: ", "cannot be made on any node")),
        (("2xA100-40GB",), ("x on 2 x A100-40GB: ", "cannot be made")),
        (("T4",), ("x on 1 x T4: ", "no MIG devices", "cards have no MIG", "stay whole")),
    ],
)
@pytest.mark.parametrize("devices", ["{'1c.3g.20gb': 1}", "{'1c.3g.20gb': 3, '1g.5gb': 9}"])
def test_parts_of_gpu_instances_are_wrong_for_that_reason_alone(
    devices: str, nodes: tuple[str, ...], means: tuple[str, ...]
) -> None:
    part = only(layout(devices), *nodes)
    (problem,), (meaning,) = part.problems, part.means
    assert problem.startswith('mig-configs.x[0].mig-devices["1c.3g.20gb"]: ')
    for fact in ("compute instances smaller than their GPU instance", "are not made", "write 3g.20gb"):
        assert fact in problem
    for fact in means:
        assert fact in meaning


def test_parts_that_only_another_model_is_asked_for_keep_no_node_from_the_layout() -> None:
    more = "  - {devices: all, mig-enabled: true, mig-devices: {'1g.10gb': 7}, device-filter: H100-80GB}\n"
    text = layout("{'1c.3g.20gb': 1}", ", device-filter: A100-40GB") + more
    assert only(text).means == ("x: fits H100-80GB",)
    of_a100, of_h100, _ = only(text, "A100-40GB", "H100-80GB").means
    assert of_a100 == "x on 1 x A100-40GB: cannot be made"
    assert of_h100 == "x on 1 x H100-80GB: nvidia.com/mig-1g.10gb 7"
    assert len(only(text).problems) == 1


def test_filters_by_pci_id_and_by_name_limit_the_models() -> None:
    assert only(layout("{'1g.10gb': 7}", ", device-filter: ['0x233010DE']")).means == ("x: fits H100-80GB",)
    assert only(layout("{'1g.10gb': 7}", ", device-filter: A100-SXM4-80GB")).means == ("x: fits A100-80GB",)


def test_cards_without_mig_stay_whole_and_may_not_be_named() -> None:
    (told,) = only(layout("{'1g.5gb': 7}"), "2xT4").means
    for fact in ("x on 2 x T4: ", "no MIG devices", "cards have no MIG", "stay whole"):
        assert fact in told
    (told,) = only(layout("{'1g.5gb': 7}").replace("devices: all", "devices: [0]"), "2xT4").means
    assert "GPU 0 (Tesla T4) has no MIG" in told


def test_models_whose_placements_are_unknown_are_not_judged() -> None:
    part = only(layout("{'1g.16gb': 2, '2g.32gb': 0}", ", device-filter: 'RTX PRO 4500 Blackwell'"), "RTX-PRO-4500")
    assert part.problems == ()
    assert "only a real card reports them" in part.means[0]


def test_manifests_of_other_kinds_are_passed_over_unless_there_is_nothing_else() -> None:
    parts = check_file("kind: Namespace\n---\n" + SLICES.replace("replica:", "replicas:"), [])
    assert [part.problems for part in parts] == [(), (), ()]
    assert parts[0].notices == ("is a Namespace, which is not checked",)
    assert check_file("kind: Namespace", [])[-1].problems[0].startswith("holds nothing to check")


def test_a_list_of_config_maps_is_opened() -> None:
    inner = "\n".join("  " + line for line in SLICES.splitlines())
    assert len(check_file(f"kind: List\nitems:\n-{inner[1:]}", [])) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "not YAML"),
        ("kind: ConfigMap\nmetadata: {name: x}", "data: is empty"),
        ("kind: ConfigMap\ndata: {a: {version: v1}}", "data.a: must be text"),
        ("kind: ConfigMap\ndata: {a: 'b: ['}", "not YAML"),
        ("version: v1\nmig-config: {}", "mig-config: unknown; did you mean mig-configs?"),
    ],
)
def test_what_cannot_be_read_is_wrong(text: str, problem: str) -> None:
    assert check_file(text, [])[0].problems[0].startswith(problem)


def test_the_clients_file_of_the_mig_manager_is_passed_over() -> None:
    parts = check_file(LAYOUTS + "---\nversion: v1\nsystemd-services: [dcgm.service]\n", [])
    assert "Tessera stops none" in parts[1].notices[0]


@pytest.mark.parametrize(("text", "shown"), [("A100-40GB", "1 x A100-40GB"), ("8xh100", "8 x H100-80GB")])
def test_nodes_are_counted_cards_of_a_model(text: str, shown: str) -> None:
    assert str(parse_node(text)) == shown


def test_an_unknown_model_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match="the models are A100-40GB"):
        parse_node("4xA101")


def test_the_flags_that_a_profile_decides_are_told() -> None:
    part = only("""
        flags:
          migStrategy: single
          nvidiaDriverRoot: /run/nvidia/driver
          plugin:
            passDeviceSpecs: true
            deviceListStrategy: [envvar, cdi-cri]
            deviceIDStrategy: index
            cdiAnnotationPrefix: cdi.example.com/
            sharedDevicesAllocationPolicy: packed
    """)
    assert part.means == (
        "MIG strategy single",
        "containers get their devices by envvar, cdi-cri",
        "containers name each device by its index",
        "annotations of CDI begin with cdi.example.com/",
        "answers to kubelet list the device nodes",
        "device nodes are in /run/nvidia/driver on the host",
        "several devices of one container are packed",
        "nothing is shared",
    )
