"""Withdrawing an option's file while others write or delete its ConfigMap."""

import asyncio
from typing import Any

import pytest
from tests.cli.install.test_apply import file_of_groups, install, objects

from tessera.api.names import NODE_GROUPS_KEY, NODE_GROUPS_MAP
from tessera.cli.install.apply import FIELD_MANAGER, AppliedObject
from tessera.cli.install.ownership import withdraw_file
from tessera.cli.install.preflight import immutable_config_map
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS


def test_a_key_that_somebody_writes_meanwhile_stays(place: Any) -> None:
    async def scenario() -> None:
        await install(place, node_groups="ours")
        found = await file_of_groups(place)
        more = {"data": {"notes": "keep"}}
        await place.client("editor").merge_patch(CONFIGMAPS.as_dicts(), NODE_GROUPS_MAP, more, "tessera-system")
        assert await withdraw_file(place.client(), found, FIELD_MANAGER, dry=False) == "withdrawn"
        assert (await file_of_groups(place))["data"] == {"notes": "keep"}

    asyncio.run(scenario())


def test_a_config_map_that_somebody_deletes_meanwhile_is_not_made_again(place: Any) -> None:
    async def scenario() -> None:
        await install(place, node_groups="ours")
        found = await file_of_groups(place)
        await place.client().delete(CONFIGMAPS.as_dicts(), NODE_GROUPS_MAP, "tessera-system")
        assert await withdraw_file(place.client(), found, FIELD_MANAGER, dry=False) == "deleted"
        with pytest.raises(NotFound):
            await file_of_groups(place)

    asyncio.run(scenario())


async def freeze(place: Any) -> None:
    await place.client("editor").merge_patch(
        CONFIGMAPS.as_dicts(), NODE_GROUPS_MAP, {"immutable": True}, "tessera-system"
    )


def test_an_immutable_config_map_is_named_before_anything_is_written(place: Any) -> None:
    async def scenario() -> None:
        await install(place, node_groups="ours")
        await freeze(place)
        told = await immutable_config_map(place.client(), objects(node_groups="others"))
        assert told == (
            "ConfigMap tessera-system/tessera-node-groups is immutable, so groups.yaml cannot be replaced; nothing was"
            " changed; delete it, then run this again: kubectl delete configmap tessera-node-groups -n tessera-system"
        )
        assert await immutable_config_map(place.client(), objects(node_groups="ours")) == "", "it has this content"
        await place.client().delete(CONFIGMAPS.as_dicts(), NODE_GROUPS_MAP, "tessera-system")
        assert await immutable_config_map(place.client(), objects(node_groups="others")) == ""

    asyncio.run(scenario())


def test_an_immutable_config_map_stays_when_its_option_is_left_out(place: Any) -> None:
    async def scenario() -> None:
        await install(place, node_groups="ours")
        await freeze(place)
        for dry in (True, False):
            (done,) = (each for each in await install(place, dry=dry) if each.result != "unchanged")
            assert done == AppliedObject(f"configmap/{NODE_GROUPS_MAP} in tessera-system", "immutable")
        assert (await file_of_groups(place))["data"] == {NODE_GROUPS_KEY: "ours"}

    asyncio.run(scenario())
