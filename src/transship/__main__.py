"""`python -m transship` and `accelerate launch -m transship`."""

from transship.cli import main

main()
