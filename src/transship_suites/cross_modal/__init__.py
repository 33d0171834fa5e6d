"""Tasks of modalities that no backbone here has seen, and the rows that suites of `adapt` compare on them."""
