"""The controller process: election, HTTP endpoints, registries."""
