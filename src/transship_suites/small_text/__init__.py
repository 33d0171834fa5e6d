"""Sentence encoders with heads, tasks for them, and probes: what text suites share.

Nothing is imported here: listing suites must not cost the import of torch.
"""
