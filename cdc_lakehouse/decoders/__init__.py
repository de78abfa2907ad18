"""Decode segments into events: batches with the columns of `event_schema`. Values stay the source's text."""
