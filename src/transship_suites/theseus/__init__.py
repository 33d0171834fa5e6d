"""What the suites of THESEUS share: rows and columns, and how a transport is measured."""
