"""The chart installed again, after its removal, under another release in another namespace."""

import pytest
from charts.files import FOLDER
from tests.support.running_lab import RunningLab


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB", "--no-tessera", "--mig-config", ""]


def test_what_helm_left_belongs_to_the_release_before_until_the_next_takes_it(cluster: RunningLab) -> None:
    cluster.helm("install", "one", str(FOLDER), "-n", "tessera-system", "--create-namespace", "--wait")
    kept = cluster.helm("uninstall", "one", "-n", "tessera-system")
    assert "instaslices.inference.redhat.com" in kept
    again = ("install", "two", str(FOLDER), "-n", "gpu", "--create-namespace", "--wait")
    assert "cannot be imported into the current release" in cluster.helm(*again, fails=True)
    cluster.helm(*again, "--take-ownership")
    definition = cluster.get("customresourcedefinition", "instaslices.inference.redhat.com")
    assert definition["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == "gpu"
    assert "2 of 2 pods ready" in cluster.tessera("version")
