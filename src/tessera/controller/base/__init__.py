"""Options and metrics of the controller process."""
