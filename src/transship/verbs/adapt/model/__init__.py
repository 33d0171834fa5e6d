"""The network: embedder, body and head, and the pretrained encoder that they come from."""
