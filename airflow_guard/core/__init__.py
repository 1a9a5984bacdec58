"""Pure rules: keys, dates, states, decisions. No SQL, no Airflow, no clock of its own."""
