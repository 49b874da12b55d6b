"""What kubelet and the node's device plugins say to each other: gRPC servers and clients, wire models.

``seam`` holds the values and the two protocols, :class:`~tessera.kubelet.seam.DevicePlugin` and
:class:`~tessera.kubelet.seam.Kubelet`. Two implementations join them: ``grpc`` over kubelet's sockets, and ``direct``
within one process. The other side, for whoever plays kubelet, is in ``registration`` (what it supplies) and
``plugin_client`` (what it calls), with ``registration_server`` and ``pod_resources_server`` for the sockets.
"""
