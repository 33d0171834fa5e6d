"""What the suites of IRP share: how encoders are stitched to heads."""
