"""The demo: a bank that posts a month of statements, and what is done to disturb it."""
