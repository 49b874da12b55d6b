"""Reads image pull secrets of the cluster when a registry is to be asked.

They are few and rarely needed, so they are read one by one instead of watched: a watch would need the right to list all
Secrets of the namespace.
"""

from tessera.driver.registry.keyring import CredentialsError, Keyring, parse_docker_config
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import SECRETS

#: The key of a Secret of type kubernetes.io/dockerconfigjson.
KEY = ".dockerconfigjson"


class PullSecrets:
    """Reads pull secrets of one namespace; an instance is the ``secrets`` of a resolver.

    Args:
        client: reads the Secrets.
        namespace: their namespace.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def __call__(self, names: tuple[str, ...]) -> Keyring:
        """All credentials in the Secrets with these names, in the sequence of the names.

        Raises:
            CredentialsError: a Secret does not exist, may not be read, or has another type.
            ConnectionError: the API server does not answer.
        """
        found = Keyring()
        for name in names:
            found = found + await self._one(name)
        return found

    async def _one(self, name: str) -> Keyring:
        where = f"secret {self._namespace}/{name}"
        try:
            secret = await self._client.get(SECRETS, name, self._namespace)
        except NotFound:
            raise CredentialsError(f"{where} does not exist; make it, or take it off imagePullSecrets") from None
        except Forbidden as error:
            grant = f"grant it by tessera install --pull-secret {name}, repeating its other options"
            raise CredentialsError(f"{where} may not be read: {grant}, or as docs/security.md says: {error}") from error
        except ApiError as error:
            raise ConnectionError(f"{where}: {error}") from error
        content = secret.data.get(KEY, b"")
        if not content:
            raise CredentialsError(f"{where} has no {KEY}; its type must be kubernetes.io/dockerconfigjson")
        return parse_docker_config(content, where=where)
