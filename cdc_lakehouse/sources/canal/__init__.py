"""A Canal server: a client for its protocol, and the protocol's messages. It does not interpret entries for tables."""
