"""Removes the agent's files from its node, and writes the answer to a request for removal on the Node.

The answer has the field manager of labels and offers. So the write that gives it also removes these, since server-side
apply removes fields that a manager no longer names. While the agent waits for clients of MPS daemons, the label of
their pod stays.
Folders that are mounted stay, empty; kubelet made them, not the agent.
"""

import logging
import random
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tessera.agent.base.node_objects import NodeSource
from tessera.api.names import CDI_KIND, MPS_HOST_LABEL
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


#: Beginning of the names of all CDI files that the agent writes, finished or not.
_CDI = CDI_KIND.replace("/", "-")


def remove_files(*, state: Path, cdi: Path, mps: Path | None, keep: Collection[Path] = ()) -> list[str]:
    """Removes the agent's state, its CDI files, and the pipes and logs of MPS daemons that have ended.

    Args:
        state: folder of the state files; all of it is the agent's.
        cdi: folder of CDI files, which the agent shares with others.
        mps: folder of the MPS daemons, all of which is the agent's; ``None`` to leave it.
        keep: state files that stay.

    Returns:
        The files that could not be removed, for people.
    """
    return [
        *_remove(each for each in _files(state, "*") if each not in keep),
        *_remove(path for pattern in (f"{_CDI}*", f".{_CDI}*") for path in _files(cdi, pattern)),
        *(_empty(mps) if mps is not None else ()),
    ]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _empty(folder: Path) -> list[str]:
    return _remove(iter(_files(folder, "*")))


def _remove(paths: Iterator[Path]) -> list[str]:
    left: list[str] = []
    for path in paths:
        try:
            if path.is_mount():
                left += _empty(path)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path} stays, remove it by hand: {error.strerror or error}")
    return left
