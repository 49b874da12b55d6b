"""Operating systems of simulated nodes: what kubelet would report of them is what their names say."""

import pytest

from tessera.driver.node_facts import parse_os_image
from tessera_lab.cluster.options import SYSTEMS, OperatingSystem, find_system, parse_system
from tessera_lab.experiments import clusters


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_systems_text_is_read_back_as_its_name(name: str) -> None:
    release = parse_os_image(SYSTEMS[name].os_image)
    assert release is not None
    assert f"{release.id}{release.version}" == name


def test_the_world_of_the_experiments_is_one_of_them() -> None:
    assert SYSTEMS[clusters.OS_TAG] == OperatingSystem(os_image=clusters.OS_IMAGE, kernel=clusters.KERNEL)


def test_without_a_version_the_newest_is_meant() -> None:
    assert find_system("rhcos") == SYSTEMS["rhcos4.15"]
    assert find_system("ubuntu") == SYSTEMS["ubuntu24.04"]


def test_an_unknown_system_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'ubuntu2204': the lab has ubuntu22\.04, .*did you mean ubuntu22\.04\?"):
        parse_system("ubuntu2204", "")


@pytest.mark.parametrize(
    ("system", "kernel", "found"),
    [
        ("", "", OperatingSystem(os_image="", kernel="")),
        ("", "6.1.0-1", OperatingSystem(os_image="", kernel="6.1.0-1")),
        ("debian12", "", SYSTEMS["debian12"]),
        ("debian12", "6.1.0-1", OperatingSystem(os_image=SYSTEMS["debian12"].os_image, kernel="6.1.0-1")),
    ],
)
def test_a_kernel_that_is_given_counts_before_the_systems(system: str, kernel: str, found: OperatingSystem) -> None:
    assert parse_system(system, kernel) == found


def test_what_no_kernel_is_called_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel 'no kernel'.*uname -r"):
        parse_system("", "no kernel")
