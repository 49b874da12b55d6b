"""The last valid version of each ClusterPolicy and NVIDIADriver, kept in the ConfigMap ``driver-policies``.

The controller ignores an object with a mistake and uses its last valid version
(:mod:`tessera.driver.policies.policy_selection`). The ConfigMap lets a controller that starts after the mistake do the
same. Content that cannot be decoded counts as missing.
"""

import logging
import random
from collections.abc import Callable, Mapping

import msgspec

from tessera.api.driver.policy import DriverPolicy
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.persistent_config_map import KeptMap
from tessera.limits import DRIVER_MEMORY

_log = logging.getLogger(__name__)

CONFIG_MAP = "driver-policies"
KEY = "policies.json"


class PolicyMemory:
    """What was followed last, by ``kind/name``.

    Args:
        client: keeps the ConfigMap.
        clock: for pauses.
        namespace: where the ConfigMap lives.
        rng: for jitter.
        may_act: whether this process still leads.
    """

    def __init__(
        self, client: Client, clock: Clock, *, namespace: str, rng: random.Random, may_act: Callable[[], bool]
    ) -> None:
        self._followed: Mapping[str, DriverPolicy] = {}
        self._map = KeptMap(
            client, clock, namespace=namespace, name=CONFIG_MAP, data=self._data, rng=rng, may_act=may_act
        )

    async def load(self) -> None:
        """Reads what an earlier controller followed; insists until the server answers."""
        self._followed = followed_in((await self._map.load()).get(KEY, "{}"))

    async def run(self) -> None:
        """Writes down what is followed, until cancelled."""
        await self._map.run()

    @property
    def followed(self) -> Mapping[str, DriverPolicy]:
        """What each object said when it last had no mistakes."""
        return self._followed

    def follow(self, policies: Mapping[str, DriverPolicy]) -> None:
        """From now on these are followed."""
        if policies != self._followed:
            self._followed = dict(policies)
            self._map.changed()

    def _data(self) -> Mapping[str, str]:
        return {KEY: msgspec.json.encode(self._followed, order="sorted").decode()}


def followed_in(text: str) -> Mapping[str, DriverPolicy]:
    """What a ConfigMap says was followed; nothing if it cannot be read."""
    try:
        return msgspec.json.decode(text[:DRIVER_MEMORY], type=dict[str, DriverPolicy])
    except (msgspec.DecodeError, RecursionError) as error:
        _log.warning("what ConfigMap %s says of policies cannot be read, it is written anew: %s", CONFIG_MAP, error)
        return {}
