"""The controller process: decides where slices go. Start it with :func:`tessera.controller.main.run`."""
