"""Operators that act once."""
