"""The query service: what pages and commands look at. Nothing here writes."""
