"""Parts that every room of the agent uses: files on disk, marker files, change notification, options, API mirrors."""
