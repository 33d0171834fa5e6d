"""What the suites of OTMF share: rows, columns and claims, heads, and how a merge is measured."""
