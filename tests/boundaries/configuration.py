"""Configuration: text becomes values, or messages."""
