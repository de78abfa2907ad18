"""One run of a feed, step by step: `cdc_lakehouse.pipeline.steps` is the sequence of steps.

Each step reads what it needs from the lake and leaves the lake in a state from which the next run continues, wherever
this one ends. Steps pass data to each other only through the lake, except for the checkpoint-ts that was read before
listing.
"""
