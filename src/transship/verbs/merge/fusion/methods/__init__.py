"""Continual methods, one file each; `merge start --method` names them."""
