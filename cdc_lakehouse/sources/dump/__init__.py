"""Dumps: what their directories hold, how far they go, and how their rows are written."""
