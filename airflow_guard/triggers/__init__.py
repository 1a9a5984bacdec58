"""Waiting without holding a worker."""

SHORTEST_DEFERRAL_S = 5.0
"""A shorter wait stays with its worker.

Airflow may take a task for lost that is back at work before the scheduler has read that its first part ended: "finished
with state success, but the task instance's state attribute is running". It then fails the try, which works on. Seen with
3.3 and deferrals of one second on a busy machine; its source tells the two parts of a try apart only until the second
one runs.
"""
