"""Alerts: this package composes them, Airflow's own notifiers deliver them."""
