"""The source's side: a proxy's features, and the head made ω-Lipschitz."""
