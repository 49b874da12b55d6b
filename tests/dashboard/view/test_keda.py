"""KEDA's external scaler over gRPC: the example's trigger, values per namespace, and never 0 for what is not known."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
import yaml
from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]
from tests.deploy.test_dashboard import options

from tessera.cli.dashboard import parse_options
from tessera.clock import LoopClock, SystemClock
from tessera.dashboard.view import externalscaler_pb2 as keda
from tessera.dashboard.view.external_metrics import STALE
from tessera.dashboard.view.keda import (
    GET_METRIC_SPEC,
    GET_METRICS,
    IS_ACTIVE,
    PERIOD,
    STREAM_IS_ACTIVE,
    ScalerPort,
    read_trigger,
)
from tessera.limits import SCALER_MESSAGE
from tessera.signals.page import LOAD, REPLICAS, ROOM, Service, SignalsPage
from tessera_lab.apiserver.authz.certificates import CertificateAuthority, CertificatePair

ROOT = Path(__file__).parents[3]
MANIFESTS = list(yaml.safe_load_all((ROOT / "examples/services/keda-external.yaml").read_text(encoding="utf-8")))
(TRIGGER,) = MANIFESTS[0]["spec"]["triggers"]
METADATA: dict[str, str] = TRIGGER["metadata"]


def page(load: float | None = 50.0) -> SignalsPage:
    values = {REPLICAS: 2.0, ROOM: 1.0} | ({} if load is None else {LOAD: load})
    own = Service(namespace="team", kind="Deployment", name="vllm", values=values)
    other = Service(namespace="other", kind="Deployment", name="vllm", values=values | {LOAD: 7.0})
    return SignalsPage(leads=True, taken=1.0, services=(own, other))


class Scaler:
    """A served scaler with a client."""

    channel: grpc.aio.Channel

    def __init__(self) -> None:
        self.signals: SignalsPage | str = page()

    async def read(self) -> SignalsPage | str:
        return self.signals

    async def metric(self, namespace: str = "team", **more: str) -> tuple[str, float]:
        asked = keda.GetMetricsRequest(scaledObjectRef=reference(namespace, **more), metricName=LOAD)
        (found,) = (await GET_METRICS.unary(self.channel)(asked)).metricValues
        return found.metricName, found.metricValueFloat


def reference(namespace: str = "team", **more: str) -> keda.ScaledObjectRef:
    return keda.ScaledObjectRef(name="vllm", namespace=namespace, scalerMetadata={**METADATA, **more})


_NO_PROXY = [("grpc.enable_http_proxy", 0)]


@asynccontextmanager
async def listening(folder: Path | None = None) -> AsyncIterator[tuple[Scaler, str]]:
    scaler = Scaler()
    port = ScalerPort(scaler.read, LoopClock(epoch=0))
    number = port.bind("127.0.0.1", 0, folder)
    running = asyncio.create_task(port.run())
    yield scaler, f"127.0.0.1:{number}"
    running.cancel()
    await asyncio.wait([running])


@asynccontextmanager
async def serving() -> AsyncIterator[Scaler]:
    async with listening() as (scaler, address), grpc.aio.insecure_channel(address, options=_NO_PROXY) as channel:
        scaler.channel = channel
        yield scaler


async def ask_by_tls(scaler: Scaler, address: str, trusted: bytes, own: CertificatePair | None = None) -> float:
    """The metric as KEDA reads it with ``caCert``, and with ``tlsClientCert`` and ``tlsClientKey``."""
    pair = (own.key, own.certificate) if own is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(trusted, *pair)
    name = [("grpc.ssl_target_name_override", "tessera-dashboard.tessera-system.svc"), *_NO_PROXY]
    async with grpc.aio.secure_channel(address, credentials, options=name) as channel:
        scaler.channel = channel
        return (await scaler.metric())[1]


async def test_with_a_certificate_the_port_is_tls_and_follows_its_renewal(tmp_path: Path) -> None:
    first, second = (CertificateAuthority(SystemClock().now(), name) for name in ("first", "second"))
    write(tmp_path, first)
    async with listening(tmp_path) as (scaler, address):
        assert await ask_by_tls(scaler, address, first.certificate) == 48.0
        async with grpc.aio.insecure_channel(address, options=_NO_PROXY) as channel:
            scaler.channel = channel
            with pytest.raises(grpc.aio.AioRpcError):
                await scaler.metric()
        write(tmp_path, second)
        assert await ask_by_tls(scaler, address, second.certificate) == 48.0


async def test_with_an_authority_only_its_callers_are_answered(tmp_path: Path) -> None:
    own, callers, foreign = (CertificateAuthority(SystemClock().now(), name) for name in ("own", "keda", "foreign"))
    write(tmp_path, own)
    (tmp_path / "ca.crt").write_bytes(callers.certificate)
    async with listening(tmp_path) as (scaler, address):
        assert await ask_by_tls(scaler, address, own.certificate, callers.issue_client_certificate("keda")) == 48.0
        for wrong in (None, foreign.issue_client_certificate("keda")):
            with pytest.raises(grpc.aio.AioRpcError):
                await ask_by_tls(scaler, address, own.certificate, wrong)


async def test_a_renewed_certificate_is_served_also_if_an_authority_of_callers_comes_or_goes(tmp_path: Path) -> None:
    """Whether callers need a certificate stays as it is until the next start: nothing is opened while it serves."""
    first, second, third = (CertificateAuthority(SystemClock().now(), name) for name in ("first", "second", "third"))
    write(tmp_path, first)
    async with listening(tmp_path) as (scaler, address):
        write(tmp_path, second)
        (tmp_path / "ca.crt").write_bytes(first.certificate)
        assert await ask_by_tls(scaler, address, second.certificate) == 48.0
    async with listening(tmp_path) as (scaler, address):
        write(tmp_path, third)
        (tmp_path / "ca.crt").unlink()
        assert await ask_by_tls(scaler, address, third.certificate, first.issue_client_certificate("keda")) == 48.0
        with pytest.raises(grpc.aio.AioRpcError):
            await ask_by_tls(scaler, address, third.certificate)


def write(folder: Path, authority: CertificateAuthority) -> None:
    pair = authority.issue_server_certificate(["tessera-dashboard.tessera-system.svc"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


async def test_the_examples_trigger_gets_target_value_and_activity() -> None:
    async with serving() as scaler:
        (spec,) = (await GET_METRIC_SPEC.unary(scaler.channel)(reference())).metricSpecs
        assert (spec.metricName, spec.targetSizeFloat) == (LOAD, 16.0)
        assert await scaler.metric() == (LOAD, 48.0)  # three replicas carry 48 of 50
        assert await scaler.metric(metric=ROOM) == (ROOM, 1.0)
        assert await scaler.metric(target="20") == (LOAD, 50.0)
        assert await scaler.metric("other") == (LOAD, 7.0)
        assert (await IS_ACTIVE.unary(scaler.channel)(reference())).result
        scaler.signals = page(0.0)
        assert not (await IS_ACTIVE.unary(scaler.channel)(reference())).result


async def test_a_stream_begins_with_what_is_so_and_ends_with_an_error_once_that_is_not_known() -> None:
    async with serving() as scaler:
        stream = STREAM_IS_ACTIVE.stream(scaler.channel)(reference())
        assert (await anext(aiter(stream))).result
        stream.cancel()
        scaler.signals = "no controller leads"
        with pytest.raises(grpc.aio.AioRpcError, match="no controller leads"):
            await anext(aiter(STREAM_IS_ACTIVE.stream(scaler.channel)(reference())))
    assert PERIOD == 15.0


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        (page(None), "tessera_service_load of Deployment team/vllm is not known"),
        (SignalsPage(leads=True), "is not known"),
        ("no controller leads", "no controller leads"),
        (msgspec.structs.replace(page(), age=STALE + 1), "61 s old"),
    ],
)
async def test_what_is_not_known_is_an_error_and_never_zero(signals: SignalsPage | str, said: str) -> None:
    async with serving() as scaler:
        scaler.signals = signals
        for asked in (scaler.metric(), IS_ACTIVE.unary(scaler.channel)(reference())):
            with pytest.raises(grpc.aio.AioRpcError, match=said) as caught:
                await asked
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": ""}, "metadata.name is missing"),
        ({"metric": "up"}, 'metadata.metric "up" is none of tessera_service_replicas'),
        ({"target": "many"}, 'metadata.target "many": write a number greater than 0'),
        ({"target": "0"}, "greater than 0"),
        ({"target": "nan"}, "greater than 0"),
        ({"target": "inf"}, "greater than 0"),
    ],
)
async def test_a_wrong_trigger_is_named(changed: dict[str, str], said: str) -> None:
    async with serving() as scaler:
        with pytest.raises(grpc.aio.AioRpcError, match=said) as caught:
            await GET_METRIC_SPEC.unary(scaler.channel)(reference(**changed))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith("ScaledObject vllm: metadata.")


async def test_a_message_that_is_too_large_is_not_read() -> None:
    async with serving() as scaler:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scaler.metric(name="x" * int(SCALER_MESSAGE))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await scaler.metric() == (LOAD, 48.0)


def test_the_port_is_off_by_default_and_the_example_leads_to_it_by_tls() -> None:
    assert options().keda_port is None
    assert METADATA["scalerAddress"] == "tessera-dashboard.tessera-system.svc:9443"
    assert parse_options(["--in-cluster", "--keda-port=9443"], {}).keda_port == 9443
    authentication = MANIFESTS[1]
    assert TRIGGER["authenticationRef"]["name"] == authentication["metadata"]["name"]
    parameters = [each["parameter"] for each in authentication["spec"]["secretTargetRef"]]
    assert parameters == ["caCert", "tlsClientCert", "tlsClientKey"], "those of KEDA's external scaler"
    assert read_trigger("team", METADATA).target == 16.0


#: By message, name and number of each field (KEDA's externalscaler.proto).
FIELDS = {
    "ScaledObjectRef": {"name": 1, "namespace": 2, "scalerMetadata": 3},
    "IsActiveResponse": {"result": 1},
    "GetMetricSpecResponse": {"metricSpecs": 1},
    "MetricSpec": {"metricName": 1, "targetSizeFloat": 3},
    "GetMetricsRequest": {"scaledObjectRef": 1, "metricName": 2},
    "GetMetricsResponse": {"metricValues": 1},
    "MetricValue": {"metricName": 1, "metricValueFloat": 3},
}


def test_fields_have_kedas_names_and_numbers_and_the_code_is_that_of_the_file(tmp_path: Path) -> None:
    messages: dict[str, Any] = dict(keda.DESCRIPTOR.message_types_by_name)
    assert {name: {each.name: each.number for each in found.fields} for name, found in messages.items()} == FIELDS
    source, out = ROOT / "src", tmp_path / "set"
    found = ["protoc", f"-I{source}", f"--descriptor_set_out={out}", str(source / keda.DESCRIPTOR.name)]
    assert protoc.main(found) == 0
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    numbers = {each.name: {field.name: field.number for field in each.field} for each in compiled.message_type}
    assert numbers == FIELDS
