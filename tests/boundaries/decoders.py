"""Decoders: bytes become events or problems."""
