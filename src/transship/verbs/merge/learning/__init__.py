"""What data says about how models should be joined: the same maths for recipes and for continual merging."""
