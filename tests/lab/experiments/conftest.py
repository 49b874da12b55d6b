"""What runs Tessera's own containers, as its command line would."""

from tessera.cli import agent, controller, webhook
from tessera_lab.installation.install import TesseraCommands, build_entrypoint

MAKE = build_entrypoint(
    TesseraCommands(agent=agent.parse_options, controller=controller.parse_options, webhook=webhook.parse_options)
)
