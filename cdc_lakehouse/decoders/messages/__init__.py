"""Protocols of topics and of Canal servers: the bytes of a message become a `changelog.messages.Message`."""
