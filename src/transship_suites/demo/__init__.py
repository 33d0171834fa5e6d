"""The demo: two small models trained on the spot, and the four verbs on them."""
