"""Tasks, fine-tunes and measuring that the suites of continual merging share.

Nothing is imported here: listing suites must not cost the import of torch.
"""
