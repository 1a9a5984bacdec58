"""Waiting without holding a worker."""
