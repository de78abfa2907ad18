"""The update of a table: events and versions become files."""
