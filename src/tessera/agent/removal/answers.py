"""Writes the agent's answer to a request for removal on its Node.

The answer has the field manager of labels and offers. So the write that gives it also removes these, since server-side
apply removes fields that a manager no longer names. While the agent waits for clients of MPS daemons, the label of
their pod stays.
"""

import logging
import random
from typing import Any

from tessera.agent.base.node_objects import NodeSource
from tessera.api.names import MPS_HOST_LABEL
from tessera.api.nodes.removal import REMOVED_ANNOTATION, RemovalAnswer, RemovalState, encode_answer
from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import NODES

_log = logging.getLogger(__name__)


class AnswerWriter:
    """Writes answers.

    Args:
        client: the API server; its field manager owns the Node's labels and offers.
        node: the Node as last seen.
        clock: for pauses after a failure.
        rng: for jitter.
    """

    def __init__(self, client: Client, node: NodeSource, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._backoff = Backoff(rng)

    async def write(self, answer: RemovalAnswer) -> None:
        """Writes an answer; returns when the API server has it, or when there is no Node."""
        while (node := self._node.node()) is not None:
            metadata: dict[str, Any] = {
                "uid": node.metadata.uid,
                "annotations": {REMOVED_ANNOTATION: encode_answer(answer)},
            }
            if answer.state is RemovalState.WAITING and MPS_HOST_LABEL in node.metadata.labels:
                metadata["labels"] = {MPS_HOST_LABEL: node.metadata.labels[MPS_HOST_LABEL]}
            body = {"metadata": metadata}
            try:
                await self._client.apply(NODES, self._node.node_name, body)
            except (ApiError, ConnectionError, TimeoutError) as error:
                pause = self._backoff.next()
                _log.warning("the answer to a removal is not written, next attempt in %.1f s: %s", pause, error)
                await self._clock.sleep(pause)
            else:
                self._backoff.reset()
                return
