"""Selection of a node's MIG layout from the files of a ConfigMap."""

import msgspec
import pytest

from tessera.agent.config import ConfigMapFiles, select_layout

SOURCE = "ConfigMap kube-system/nvidia-mig-config"
SEED = """
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
OTHER = "version: v1\nmig-configs:\n  whole:\n  - {devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}\n"
BROKEN = "version: v1\nmig-configs:\n  bad:\n  - {devices: all, mig-enable: true}\n"


def files(**texts: str) -> ConfigMapFiles:
    return ConfigMapFiles(source=SOURCE, texts={name.replace("_", "."): text for name, text in texts.items()})


def test_the_label_names_a_layout_of_the_file() -> None:
    found = select_layout(files(config_yaml=SEED), "2x2g.10gb-3x1g.5gb", "")
    assert found.reason == "the node's label nvidia.com/mig.config"
    assert found.problem is None
    assert found.entries is not None
    assert dict(found.entries[0].counts) == {"1g.5gb": 3, "2g.10gb": 2}


def test_the_default_counts_where_there_is_no_label() -> None:
    assert select_layout(files(config_yaml=SEED), "", "disabled").reason == "the cluster's default"
    assert select_layout(files(config_yaml=SEED), "disabled", "whole").name == "disabled"


def test_without_label_and_default_cards_stay_as_they_are() -> None:
    found = select_layout(files(config_yaml=SEED), "", "")
    assert (found.name, found.entries, found.problem) == ("", None, None)


def test_files_count_together() -> None:
    both = files(config_yaml=SEED, more_yaml=OTHER)
    assert select_layout(both, "whole", "").entries is not None
    assert select_layout(both, "disabled", "").entries is not None


def test_a_name_in_two_files_is_refused_for_those_who_ask_for_it() -> None:
    both = files(a=SEED, b=OTHER + SEED.partition("mig-configs:\n")[2])
    found = select_layout(both, "disabled", "")
    assert (found.entries, found.problem_reason) == (None, "LayoutAmbiguous")
    assert found.problem is not None
    for fact in (SOURCE, 'layout "disabled"', "files a, b", "keep it in one"):
        assert fact in found.problem
    assert select_layout(both, "whole", "").problem is None


def test_a_name_that_no_file_has_is_no_mistake_here() -> None:
    found = select_layout(files(config_yaml=SEED), "all-1g.5gb", "")
    assert (found.name, found.entries, found.problem) == ("all-1g.5gb", None, None)


@pytest.mark.parametrize(
    ("label", "closest"),
    [("disabeld", "disabled"), ("Whole", "whole"), ("2x2g.10gb-3x1g.5g", "2x2g.10gb-3x1g.5gb"), ("other", "")],
)
def test_a_name_that_no_file_has_is_compared_with_those_that_they_have(label: str, closest: str) -> None:
    assert select_layout(files(config_yaml=SEED, more_yaml=OTHER, bad_yaml="["), label, "").closest == ""
    assert select_layout(files(config_yaml=SEED, more_yaml=OTHER), label, "").closest == closest


def test_a_broken_file_is_a_problem_only_for_what_the_others_do_not_have() -> None:
    both = files(config_yaml=BROKEN, more_yaml=OTHER)
    assert select_layout(both, "whole", "").problem is None
    found = select_layout(both, "bad", "")
    assert (found.entries, found.problem_reason) == (None, "LayoutsRefused")
    assert found.problem is not None
    assert found.problem.startswith(f"{SOURCE}, file config.yaml: mig-configs.bad[0].mig-enable: ")


@pytest.mark.parametrize("name", ["dynamic", ""])
def test_what_needs_no_file_is_not_held_up_by_files(name: str) -> None:
    unreadable = msgspec.structs.replace(files(), error="cannot be read: no")
    assert select_layout(unreadable, name, "").problem is None
    assert select_layout(files(config_yaml=BROKEN), name, "").problem is None


def test_a_configmap_that_cannot_be_read_may_hold_any_layout() -> None:
    found = select_layout(msgspec.structs.replace(files(), error="cannot be read: no"), "all-disabled", "")
    assert (found.entries, found.problem_reason) == (None, "LayoutsUnreadable")
    assert found.problem == f"{SOURCE}: cannot be read: no"
