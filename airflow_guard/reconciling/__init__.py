"""Two sides compared: sides and rules, scans in their databases, drill-down to documents, and the judgement."""
