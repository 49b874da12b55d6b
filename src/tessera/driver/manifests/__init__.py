"""Makes the DaemonSets and pods that bring drivers to nodes, as JSON values. Pure.

Containers, mounts and environment are those that NVIDIA's images expect of its operator (gpu-operator v26.7.0,
``assets/state-driver`` and ``assets/state-container-toolkit``); waits and probes are our own.
"""
