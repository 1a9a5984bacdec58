"""Reconciliation, pure: sides, rules, control totals, breaks, and the judgement."""
