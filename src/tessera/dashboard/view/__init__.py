"""The aggregated API ``view.tessera.dev``: what tenants may see of the cluster's cards, through the API server."""
