"""Withdrawing an option's file while others write or delete its ConfigMap."""

import asyncio
from typing import Any

import pytest
from tests.cli.install.test_apply import file_of_groups, install

from tessera.api.nodes.node_groups import NODE_GROUPS_MAP
from tessera.cli.install.apply import FIELD_MANAGER
from tessera.cli.install.option_files import withdraw_file
from tessera.kube.client.errors import NotFound
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
