"""Experts in several processes: who holds which, and how tokens travel to them and back."""
