"""What people change: each act is declared once, for the pages and for the command line."""
