"""Sensors that find what went wrong."""
