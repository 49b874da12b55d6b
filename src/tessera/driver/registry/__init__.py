"""Client of image registries: looks up images through OCI's distribution API.

``aiohttp`` does the HTTP. The API above it is written here: the only maintained library for it, oras, is synchronous
and takes half a second to import, and Tessera needs only three requests of the API.
"""
