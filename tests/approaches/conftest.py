"""Fixtures of these tests."""

from __future__ import annotations

from tests.chaos import fixtures

books = fixtures.books
