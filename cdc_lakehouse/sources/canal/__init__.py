"""A Canal server: a client of its protocol, and the messages of it. Nothing of what the entries mean for a table."""
