"""HorizontalPodAutoscalers: replicas by metrics, word for word as kube-controller-manager decides, its faults too."""
