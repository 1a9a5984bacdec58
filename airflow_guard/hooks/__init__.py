"""From an Airflow connection to a ledger."""
