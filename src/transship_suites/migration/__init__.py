"""What is measured of an index whose embedding model changes."""
