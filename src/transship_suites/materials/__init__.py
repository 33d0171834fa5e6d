"""Models, data and training that suites measure on: small ones made here, and those of the papers."""
