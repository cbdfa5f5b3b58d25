"""Comparing runs, and pages that show them."""
