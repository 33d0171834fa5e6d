"""Training: what is minimised, the loop, and the two stages."""
