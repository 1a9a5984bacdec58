"""The commands: ``airflow-guard …``, and ``airflow guard …`` where Airflow takes commands of providers."""
