"""The terms of Theorem 7."""
