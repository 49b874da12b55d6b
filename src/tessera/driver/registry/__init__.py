"""Registries: what images they have, asked in OCI's distribution API.

``aiohttp`` does the HTTP. The API above it is written here: the one library for it that is maintained, oras, is
synchronous and takes half a second to import; what is needed of the API is three requests.
"""
