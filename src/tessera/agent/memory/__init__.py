"""Who takes how much memory of a shared card, and what is done about those who take too much."""
