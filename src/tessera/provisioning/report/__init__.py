"""What records and experiments come to: numbers, a table, charts and a page."""
