"""Probe environments: tiny environments whose right answer is known exactly. They land with the next release."""
