"""Running a callable under the ledger: claims, leases, effect windows, batches. No Airflow."""
