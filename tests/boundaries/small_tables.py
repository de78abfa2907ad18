"""Small tables: the lake's own bookkeeping."""
