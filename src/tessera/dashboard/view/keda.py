"""KEDA's external scaler: a ScaledObject reads the signals of services where KEDA serves ``external.metrics.k8s.io``.

The source of the format is KEDA's ``externalscaler.proto``, that of its use ``pkg/scalers/external_scaler.go``. Rules:

- KEDA states the namespace of the ScaledObject, and an answer is about services of that namespace alone. A call has no
  user, so only KEDA may ask: a NetworkPolicy lets in its namespace alone, and with a certificate in the Secret
  ``tessera-keda-tls`` the port is TLS. With ``ca.crt`` in it, a caller needs a certificate of that authority
  (``tlsClientCert`` of KEDA's TriggerAuthentication); KEDA verifies the server by ``caCert``.
- A trigger's metadata name the service by ``name`` and ``kind`` (Deployment), the ``metric``
  (``tessera_service_load``), and the ``target`` for each replica. The load is bounded by what the replicas that have
  or find a place carry at that target, as :mod:`tessera.dashboard.view.external_metrics` bounds it.
- A value that is not known is an error and never 0: KEDA then changes nothing, or takes its fallback.

``externalscaler.proto`` was written for Tessera from KEDA's public API. After a change to it, from ``src``::

    ../.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tessera/dashboard/view/*.proto
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec

from tessera.clock import Clock
from tessera.dashboard.view import externalscaler_pb2 as keda
from tessera.dashboard.view.external_metrics import require_fresh, value_of
from tessera.kube.errors import ServiceUnavailable
from tessera.kubelet.wire import Method, service
from tessera.limits import SCALER_CALLS, SCALER_MESSAGE
from tessera.signals.page import LOAD, SIGNALS, SignalsPage

SERVICE = "externalscaler.ExternalScaler"
IS_ACTIVE = Method(SERVICE, "IsActive", keda.ScaledObjectRef, keda.IsActiveResponse)
STREAM_IS_ACTIVE = Method(SERVICE, "StreamIsActive", keda.ScaledObjectRef, keda.IsActiveResponse)
GET_METRIC_SPEC = Method(SERVICE, "GetMetricSpec", keda.ScaledObjectRef, keda.GetMetricSpecResponse)
GET_METRICS = Method(SERVICE, "GetMetrics", keda.GetMetricsRequest, keda.GetMetricsResponse)

#: Seconds between two looks of a stream: the controller takes new values as often.
PERIOD = 15.0

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
ReadSignals = Callable[[], Awaitable[SignalsPage | str]]


class TriggerError(Exception):
    """A trigger's metadata are not valid."""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """What a ScaledObject scales by.

    Attributes:
        namespace: of the ScaledObject.
        kind: of the service.
        name: of the service.
        metric: one of the signals.
        target: the metric's value for each replica.
    """

    namespace: str
    kind: str
    name: str
    metric: str
    target: float

    def value(self, page: SignalsPage | str) -> float:
        """The metric's value.

        Raises:
            ServiceUnavailable: the signals are not known.
            LookupError: this one is not.
        """
        for each in require_fresh(page).services:
            if (each.namespace, each.kind, each.name) == (self.namespace, self.kind, self.name):
                value = value_of(each, self.metric, self.target)
                if value is not None:
                    return value
        raise LookupError(f"{self.metric} of {self.kind} {self.namespace}/{self.name} is not known")


def read_trigger(namespace: str, metadata: Mapping[str, str]) -> Trigger:
    """Reads the metadata of a trigger.

    Raises:
        TriggerError: a field is missing or has no valid value.
    """
    name, metric = metadata.get("name", ""), metadata.get("metric", LOAD)
    if not name:
        raise TriggerError("metadata.name is missing: write the name of the Deployment")
    if metric not in SIGNALS:
        raise TriggerError(f'metadata.metric "{metric[:100]}" is none of {", ".join(SIGNALS)}')
    text = metadata.get("target", "")
    try:
        target = float(text)
    except ValueError:
        target = 0.0
    if not 0 < target < float("inf"):
        raise TriggerError(f'metadata.target "{text[:100]}": write a number greater than 0, the value for each replica')
    return Trigger(
        namespace=namespace, kind=metadata.get("kind", "Deployment"), name=name, metric=metric, target=target
    )


class ScalerPort:
    """The port.

    Args:
        signals: returns the signals of services, or why they are not known.
        clock: the time.
    """

    def __init__(self, signals: ReadSignals, clock: Clock) -> None:
        self._signals = signals
        self._clock = clock
        options = [("grpc.max_receive_message_length", int(SCALER_MESSAGE)), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=int(SCALER_CALLS))
        handler = service(
            SERVICE,
            IS_ACTIVE.handle_unary(self._is_active),
            STREAM_IS_ACTIVE.handle_stream(self._stream_is_active),
            GET_METRIC_SPEC.handle_unary(self._get_metric_spec),
            GET_METRICS.handle_unary(self._get_metrics),
        )
        self._server.add_generic_rpc_handlers((handler,))

    def bind(self, address: str | None, port: int, folder: Path | None = None) -> int:
        """Opens a port of an address, None for all; 0 for any port, which is returned.

        Args:
            address: of this machine.
            port: its number.
            folder: with ``tls.crt``, ``tls.key`` and perhaps ``ca.crt``, which are read again when they change; without
                them, the port is plain.

        Raises:
            RuntimeError: it is in use.
            OSError: a file cannot be read.
        """
        host = "[::]" if address is None else f"[{address}]" if ":" in address else address
        pair = None if folder is None else _read_pair(folder)
        if folder is None or pair is None:
            return self._server.add_insecure_port(f"{host}:{port}")
        return self._server.add_secure_port(f"{host}:{port}", _credentials(folder, pair))

    async def run(self) -> None:
        """Serves until cancelled."""
        await self._server.start()
        try:
            await self._server.wait_for_termination()
        finally:
            await self._server.stop(grace=None)

    async def _is_active(self, request: keda.ScaledObjectRef, context: Context) -> keda.IsActiveResponse:
        return keda.IsActiveResponse(result=await self._value(await _trigger(request, context), context) > 0)

    async def _stream_is_active(
        self, request: keda.ScaledObjectRef, context: Context
    ) -> AsyncIterator[keda.IsActiveResponse]:
        trigger, told = await _trigger(request, context), None
        while True:
            active = await self._value(trigger, context) > 0
            if active is not told:
                yield keda.IsActiveResponse(result=active)
            told = active
            await self._clock.sleep(PERIOD)

    async def _get_metric_spec(self, request: keda.ScaledObjectRef, context: Context) -> keda.GetMetricSpecResponse:
        trigger = await _trigger(request, context)
        spec = keda.MetricSpec(metricName=trigger.metric, targetSizeFloat=trigger.target)
        return keda.GetMetricSpecResponse(metricSpecs=[spec])

    async def _get_metrics(self, request: keda.GetMetricsRequest, context: Context) -> keda.GetMetricsResponse:
        trigger = await _trigger(request.scaledObjectRef, context)
        value = keda.MetricValue(metricName=trigger.metric, metricValueFloat=await self._value(trigger, context))
        return keda.GetMetricsResponse(metricValues=[value])

    async def _value(self, trigger: Trigger, context: Context) -> float:
        try:
            return trigger.value(await self._signals())
        except (ServiceUnavailable, LookupError) as error:
            return await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


class _Pair(NamedTuple):
    """A certificate with its key, and the authority of callers; PEM."""

    certificate: bytes
    key: bytes
    callers: bytes | None


def _read_pair(folder: Path) -> _Pair | None:
    """The files of a folder, as in a Secret of the type ``kubernetes.io/tls``; None without a certificate."""
    if not (folder / "tls.crt").exists():
        return None
    callers = folder / "ca.crt"
    authority = callers.read_bytes() if callers.exists() else None
    return _Pair((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes(), authority)


def _credentials(folder: Path, first: _Pair) -> grpc.ServerCredentials:
    """Serves the present files of the folder; whether callers need a certificate is decided at the start."""
    served = first

    def configuration(pair: _Pair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], pair.callers)

    def renewed() -> grpc.ServerCertificateConfiguration:  # gRPC asks for each connection, on a thread of its own
        nonlocal served
        try:
            found = _read_pair(folder)
        except OSError as error:
            _log.warning("the certificate in %s cannot be read: %s", folder, error)
            found = None
        if found is not None and (found.callers is None) != (first.callers is None):
            found = found._replace(callers=served.callers)
            if found != served:
                _log.warning("ca.crt in %s came or went: that counts from the next start of this process on", folder)
        served = found or served
        return configuration(served)

    return grpc.dynamic_ssl_server_credentials(configuration(first), renewed, first.callers is not None)


async def _trigger(request: keda.ScaledObjectRef, context: Context) -> Trigger:
    try:
        return read_trigger(request.namespace, request.scalerMetadata)
    except TriggerError as error:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"ScaledObject {request.name[:253]}: {error}")
