"""Kubelet's gRPC wire formats: device plugin ``v1beta1``, pod-resources ``v1``, and those of drivers of claims.

The ``.proto`` files were written for Tessera from the public API (``k8s.io/kubelet/pkg/apis``): package, service,
message names and field numbers are kubelet's, and only what kubelet sends or reads is there. The Python modules beside
them are generated and checked in, so that an installation needs no compiler. After a change to a ``.proto``, from the
repository's root::

    cd src && ../.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tessera/kubelet/proto/*.proto

All packages are registered in protobuf's global pool by their file path; the path below ``src`` keeps that path apart
from any other copy of kubelet's API in the same process. Services are not generated: :mod:`tessera.kubelet.wire`
lists their few methods by name.
"""
