"""Objects of Dynamic Resource Allocation (DRA), ``resource.k8s.io/v1``: claims, classes, templates and slices."""
