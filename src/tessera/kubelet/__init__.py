"""The node's side of kubelet's device-plugin and pod-resources APIs.

``interfaces`` holds the values and the two protocols, :class:`~tessera.kubelet.interfaces.DevicePlugin` and
:class:`~tessera.kubelet.interfaces.Kubelet`. ``grpc`` implements :class:`~tessera.kubelet.interfaces.Kubelet` over
kubelet's unix sockets. Kubelet's own side, for simulated kubelets, is in the lab.
"""
