"""Commands of the simulated cluster; they join the ``tessera`` command by the entry points of ``tessera-gpu-lab``."""

from tessera.cli.base.command_group import Table

#: Commands by the group they join; ``""`` is the command line itself.
COMMANDS: dict[str, Table] = {
    "": {
        "bench": ("tessera_lab.cli.bench", "Measure the time until cards can be used, on a cluster or in the lab."),
        "demo": ("tessera_lab.cli.demo", "Show how Tessera makes a slice on demand, on simulated cards."),
        "lab": ("tessera_lab.cli.lab", "Start, inspect and stop a simulated cluster on this machine."),
    },
    "provisioning report": {
        "drawing": ("tessera_lab.drawing.report", "Read results of experiments, and draw charts and a page."),
    },
    "autoscaler": {
        "simulate": ("tessera_lab.cli.autoscaler_simulate", "Simulate an autoscaler with given timers."),
    },
}
