"""A lab that booted before is the same as one that boots for a test, and keeps nothing of the tests before."""

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.conftest import COMMON
from tests.support.booted_lab import BootedLab, play
from tests.support.virtual_lab import InLab, VirtualLab

CERTIFICATES = {"caBundle", "ca.crt", "tls.crt", "tls.key"}
ONE = {"nvidia.com/mig-1g.5gb": 1}


def same(found: Any) -> Any:
    """An object without the webhook's certificates, which no two boots have in common."""
    if isinstance(found, dict):
        return {key: same(each) for key, each in found.items() if key not in CERTIFICATES}
    return [same(each) for each in found] if isinstance(found, list) else found


async def state(lab: VirtualLab) -> dict[str, Any]:
    """All objects with their versions, the cards, the time, and the nodes' files, once all that was due has run."""
    await lab.clock.sleep(1)
    store = lab.cluster.server.core.store
    machine = lab.machine()
    cdi = lab.cluster.options.cdi
    assert cdi is not None
    return {
        "objects": {
            resource: [same(msgspec.json.decode(msgspec.json.encode(each))) for each in store.list(resource)]
            for resource in store._histories
        },
        "cards": [(each, machine.instances(each), machine.compute_mode(each)) for each in machine.uuids()],
        "time": lab.clock.now(),
        "files": {
            str(file.relative_to(cdi)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in cdi.rglob("*")
            if file.is_file()
        },
    }


@pytest.mark.parametrize(("nodes", "mig_config"), [("4xA100-40GB", "dynamic"), ("4xA100-40GB", "")])
def test_a_lab_that_booted_before_is_as_one_that_boots_for_the_test(in_lab: InLab, nodes: str, mig_config: str) -> None:
    assert (nodes, mig_config) in COMMON, "the second one starts in a fork"
    booted = in_lab(state, nodes, own=True, mig_config=mig_config)
    assert len(booted["objects"]) > 20
    assert len(booted["files"]) > 5
    assert in_lab(state, nodes, mig_config=mig_config) == booted


def test_a_scenario_leaves_nothing_to_the_next_one(in_lab: InLab) -> None:
    before = in_lab(state)

    async def scenario(lab: VirtualLab) -> dict[str, Any]:
        await lab.create("pod", ONE)
        await lab.running("pod")
        await lab.clock.sleep(60)
        return await state(lab)

    after = in_lab(scenario)
    assert all(after[key] != before[key] for key in before)
    assert in_lab(state) == before
    assert in_lab(scenario) == after


def test_a_scenario_that_fails_fails_its_test_with_its_words(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        assert lab.gpus() == {"nvidia.com/none": 7}

    with pytest.raises(pytest.fail.Exception, match="nvidia"):
        in_lab(scenario)


def test_a_fork_that_dies_is_told(in_lab: InLab) -> None:
    async def scenario(_lab: VirtualLab) -> None:
        os._exit(3)

    with pytest.raises(pytest.fail.Exception, match="status 3"):
        in_lab(scenario)


def test_a_lab_that_does_not_boot_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="X900"):
        BootedLab(tmp_path, lambda scenario, folder: play(scenario, "1xX900", folder))
