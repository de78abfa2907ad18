"""One pass over a feed, step by step: `cdc_lakehouse.pipeline.steps` is the whole of it.

Each step reads what it needs from the lake and leaves it in a state from which the next run goes on, wherever this one
ends; no step hands anything to the next but through the lake, save the checkpoint-ts that was read before listing.
"""
