"""The pages in Airflow's UI. Airflow imports :mod:`airflow_guard.pages.airflow_plugin` in every one of its services; all
else here is imported when the first page is asked for."""
