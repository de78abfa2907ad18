"""Dumps: the content of their directories, their position, and how their rows are written."""
