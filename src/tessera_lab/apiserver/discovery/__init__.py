"""Documents that describe the API: discovery and OpenAPI, versions 2 and 3."""
