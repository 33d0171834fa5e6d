"""What the suites of RECRAFT share: rows and columns, and how one method on one task is measured."""
