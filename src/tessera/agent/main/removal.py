"""Takes Tessera off one node: releases the cards, removes the agent's files, and answers on the Node.

The files go last, so an agent that was killed before begins the removal again. Folders that are mounted stay, empty;
kubelet made them, not the agent. The answer has the field manager of labels and offers. So the write that gives it also
removes these, since server-side apply removes fields that a manager no longer names. While the agent waits for clients
of MPS daemons, the label of their pod stays.
"""

import logging
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.base.node_objects import NodeSource
from tessera.agent.base.options import AgentOptions
from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.turn import NodeTurn
from tessera.agent.driver.gate import DriverGate
from tessera.agent.driver.ready_condition import ReadyConditionWriter
from tessera.agent.main.leaving import CLIENT_RECHECK, CardRelease
from tessera.agent.main.wiring import Components
from tessera.api.names import CDI_KIND, MPS_HOST_LABEL
from tessera.api.nodes.node_marks import (
    REMOVAL_ANNOTATION,
    REMOVED_ANNOTATION,
    RemovalAnswer,
    RemovalRequest,
    RemovalState,
    encode_answer,
    make_answer,
)
from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import NODES
from tessera.kubelet.interfaces import Kubelet

_log = logging.getLogger(__name__)


class AnswerWriter:
    """Writes answers.

    Args:
        environment: the API server, whose field manager owns the Node's labels and offers.
        node: the Node as last seen.
    """

    def __init__(self, environment: AgentEnvironment, node: NodeSource) -> None:
        self._client = environment.client
        self._node = node
        self._clock = environment.clock
        self._backoff = Backoff(environment.rng)

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


class NodeRemoval:
    """The agent's part of a removal.

    Args:
        options: the agent's folders.
        gate: knows whether a removal is requested.
        answers: writes answers on the Node.
        condition: says on the Node whether the driver is ready; ends with a removal.
        turn: the turn of this agent; a predecessor ends before cards are released.
        changes: announces changes of the Node.
    """

    def __init__(
        self,
        options: AgentOptions,
        gate: DriverGate,
        *,
        answers: AnswerWriter,
        condition: ReadyConditionWriter,
        turn: NodeTurn,
        changes: ChangeNotifier,
    ) -> None:
        self._options = options
        self._gate = gate
        self._answers = answers
        self._condition = condition
        self._turn = turn
        self._changes = changes.about(Fact.DRIVER)
        #: The last answer to a request for removal that the agent cannot fulfil yet.
        self._answer: RemovalAnswer | None = None

    async def release_cards(self, components: Components, kubelet: Kubelet) -> list[str] | None:
        """Releases the cards because Tessera leaves the node.

        Args:
            components: an agent's components, none of them running.
            kubelet: the node's kubelet.

        Returns:
            Notes about what stays on the cards; ``None`` if the request was withdrawn.
        """
        self._condition.stop()
        await self._turn.outlive()
        release = CardRelease(components, kubelet)
        try:
            if not await release.end_daemons(self._wait_to_leave):
                return None
            while (request := self._gate.removal) is not None:
                try:
                    return await release.free(keep=request is RemovalRequest.KEEP)
                except ConnectionError as error:
                    if not await self._wait_to_leave([f"the users of the cards are not known: {error}"]):
                        return None
            return None
        finally:
            components.detach()

    async def _wait_to_leave(self, notes: Sequence[str]) -> bool:
        """Publishes the obstacles and waits; returns false if the request was withdrawn meanwhile."""
        answer = make_answer(RemovalState.WAITING, notes)
        if answer != self._answer:
            self._answer = answer
            await self._answers.write(answer)
        await self._changes.wait_until(lambda: self._gate.removal is None, CLIENT_RECHECK)
        return self._gate.removal is not None

    async def stay_away(self, notes: list[str], *, real: bool) -> None:
        """Removes the agent's files, answers, and waits until the request is withdrawn.

        Args:
            notes: what stays on the cards.
            real: true if the cards are real ones; only then MPS daemons had files.
        """
        self._condition.stop()
        mps = (self._options.mps_mount or self._options.mps_root) if real else None
        keep = (self._options.kept_file,) if self._gate.removal is not RemovalRequest.DESTROY else ()
        left = remove_files(state=self._options.state_dir, cdi=self._options.cdi_dir, mps=mps, keep=keep)
        self._answer = None
        await self._answers.write(make_answer(RemovalState.DONE, [*notes, *left]))
        _log.info("Tessera has left this node; it returns when the annotation %s is removed", REMOVAL_ANNOTATION)
        while self._gate.removal is not None:
            await self._changes.wait(self._changes.count)


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
