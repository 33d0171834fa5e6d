"""Models without a transformer: linear ones on raw values and on random convolutions."""
