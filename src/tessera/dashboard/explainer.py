"""Explains waiting pods to visitors of the page in the cluster, from the objects that the page mirrors.

Explanations are made in a thread, one after the other, and a bounded number wait: nobody can slow the feed by clicks.
"""

import asyncio

from tessera.dashboard.private_reasons import explain_privately
from tessera.dashboard.source import ClusterSource
from tessera.dashboard.visibility import Redactor, Visibility
from tessera.explain.explanation import ExplanationReport
from tessera.kube.client.errors import NotFound, ServiceUnavailable, Status
from tessera.limits.access import PAGE_EXPLANATIONS


class PrivateExplainer:
    """Explains pods to readers with their rights.

    Args:
        source: mirrors the cluster.
        redactor: gives the aliases of the page.
    """

    def __init__(self, source: ClusterSource, redactor: Redactor) -> None:
        self._source = source
        self._redactor = redactor
        self._turn = asyncio.Lock()
        #: Explanations that are made or wait.
        self._open = 0

    async def explain(self, namespace: str, name: str, visibility: Visibility) -> ExplanationReport:
        """Explains a pod to a reader who may list the pods of its namespace.

        Raises:
            NotFound: there is no such pod.
            ApiError: too many explanations wait.
        """
        if self._open >= PAGE_EXPLANATIONS:
            raise ServiceUnavailable(Status(code=503, message="many explanations are being made; try again"))
        self._open += 1
        try:
            async with self._turn:
                pod = self._source.pod(namespace, name)
                if pod is None:
                    raise NotFound(Status(code=404, reason="NotFound", message=f'pods "{name}" not found'))
                found = await asyncio.to_thread(
                    explain_privately, self._source.objects, pod, visibility, self._redactor
                )
        finally:
            self._open -= 1
        return ExplanationReport(kind="pod", namespace=namespace, name=name, answers=(found,))
