"""Data in, predictions out: reading, splitting, scaling, decoding, and metrics."""
