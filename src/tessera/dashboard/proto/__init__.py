"""KEDA's gRPC wire format of external scalers, generated from ``externalscaler.proto``.

Written for Tessera from KEDA's public API: package, messages and field numbers are KEDA's. After a change, from the
repository's root::

    cd src && ../.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tessera/dashboard/proto/*.proto
"""
