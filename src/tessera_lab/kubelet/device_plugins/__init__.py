"""Kubelet's side of the device-plugin and pod-resources APIs, for the simulated kubelet and for tests.

``registration`` holds the protocols that a simulated kubelet implements, ``plugin_client`` calls a plugin.
``registration_server`` and ``pod_resources_server`` serve them on unix sockets; ``inprocess`` joins agent and kubelet
without sockets.
"""
