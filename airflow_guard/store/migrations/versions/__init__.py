"""One module per version of the ledger; a released one never changes."""
