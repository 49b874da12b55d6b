"""The kinds of requests: what pods ask for, and how it is counted, recorded and found again."""
