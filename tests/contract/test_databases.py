"""What the other tests rely on: each gets an empty database of its own, of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.databases import POSTGRES_VARIABLE, SERVERS, DatabaseNotReachable, DatabaseServers, databases

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import DatabaseUnderTest


@pytest.mark.parametrize("turn", [1, 2])
def test_a_database_is_empty_and_belongs_to_one_test(database: DatabaseUnderTest, turn: int) -> None:
    engine = database.engine()
    assert sa.inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE posting (amount INTEGER)"))
        connection.execute(sa.text("INSERT INTO posting VALUES (1)"))
    other = database.server.fresh()
    assert sa.inspect(other.engine()).get_table_names() == []
    database.server.drop(other)
    assert sa.inspect(engine).get_table_names() == ["posting"]


@databases(*SERVERS)
def test_a_session_left_open_does_not_hold_up_the_clean_up(database: DatabaseUnderTest) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE posting (amount INTEGER)"))
    left_open = sa.create_engine(database.url).connect()
    left_open.execute(sa.text("SELECT amount FROM posting")).all()
    database.server.drop(database)
    with pytest.raises(sa.exc.DBAPIError):
        left_open.execute(sa.text("SELECT amount FROM posting")).all()


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POSTGRES_VARIABLE, "postgresql+psycopg://somebody:secret@127.0.0.1:1/postgres")
    servers = DatabaseServers(tmp_path)
    for _ in range(2):
        with pytest.raises(DatabaseNotReachable, match=POSTGRES_VARIABLE) as caught:
            servers.get("postgres_server")
        assert "secret" not in str(caught.value)
    assert [line.split()[0] for line in servers.lines()] == ["postgres_server"]
    assert "NOT RUN" in servers.lines()[0]
