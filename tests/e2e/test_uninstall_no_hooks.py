"""`helm uninstall --no-hooks` removes the processes at once; `tessera uninstall` removes the rest.

A lab of its own: slices that running pods keep stay on the cards, and these pods need whole ones.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.e2e.test_uninstall import bare, helm, lab_arguments, offers, release, without_amounts
from tests.support.inventory import inventory
from tests.support.running_lab import RunningLab

__all__ = ["bare", "lab_arguments", "release"]


@pytest.mark.soak
def test_after_helm_without_hooks_the_command_removes_the_rest(release: RunningLab, bare: Mapping[str, Any]) -> None:
    release.apply(RunningLab.pod("large-1", {"nvidia.com/mig-7g.40gb": 1}))
    release.kubectl("wait", "pod/large-1", "--for=condition=Ready", "--timeout=120s")
    release.apply(RunningLab.pod("large-2", {"nvidia.com/mig-7g.40gb": 1}))
    helm(release, "uninstall", "tessera", "--no-hooks")
    left = inventory(release)
    assert left != bare
    assert any("tessera.dev" in key for key in left["annotations node-1"])
    assert release.run("kubectl", "get", "daemonset", "tessera-agent", "-n", "tessera-system").returncode != 0

    told = release.run_tessera("uninstall", "--yes")
    assert told.returncode == 1, "nobody runs on the nodes any more who could remove files there"
    assert "node/node-1 stays: its agent does not run" in told.stdout
    assert "/var/lib/tessera" in told.stdout
    after = inventory(release)
    files = {each for each in after if each.startswith("file ")}
    assert without_amounts({name: each for name, each in after.items() if name not in files}) == without_amounts(bare)
    assert files
    assert release.get("pod", "large-1")["status"]["phase"] == "Running"
    assert not any(each["spec"].get("schedulingGates") for each in release.get("pods")["items"])

    # The next installation finds the files and the slices, and its removal takes all with it.
    release.kubectl("delete", "pods", "--all", "--now")
    release.tessera("install")
    release.eventually(lambda: all(offers(node) for node in release.get("nodes")["items"]))
    release.tessera("uninstall", "--yes")
    assert inventory(release) == bare
