"""What runs Tessera's own containers, as its command line would."""

from tessera.cli import agent, controller, webhook
from tessera_lab.installation.install import Commands, entrypoint

MAKE = entrypoint(Commands(agent=agent.parsed, controller=controller.parsed, webhook=webhook.parsed))
