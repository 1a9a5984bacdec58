"""Alerts: from facts to a message that fits a telephone. Pure."""
