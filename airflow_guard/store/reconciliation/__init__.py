"""Reconciliation in databases: scans, drill-down, duplicates."""
