"""Documents: how what a task lists becomes keys, and what is held back before anything is claimed."""

from __future__ import annotations

import contextlib
import csv
import sqlite3
from collections import UserDict, defaultdict
from datetime import date
from types import MappingProxyType
from typing import Any

import pytest

from airflow_guard.core.content import changed_fields
from airflow_guard.core.documents import DocumentReader, without_repetitions
from airflow_guard.core.errors import ConfigurationError, DocumentError
from airflow_guard.core.keys import KeySpace

SPACE = KeySpace("bank_statements", "post_statement", date(2025, 3, 31))
STATEMENT = {"no": "S-1", "amount": "10.00", "currency": "EUR"}


def reader(document_key: str | None = "no", fields: list[str] | None = None) -> DocumentReader:
    return DocumentReader(SPACE.hasher(), document_key, fields)


def read(*items, **options):
    return [reader(**options).read_one(item) for item in items]


# -- one document ------------------------------------------------------------------------------------------


def test_a_text_is_its_own_payload_in_normal_form():
    (document,) = read(" INV-1 ")
    assert (document.name, document.payload, document.fingerprint) == ("INV-1", "INV-1", None)
    assert document.key_hash == SPACE.hasher().key_hash("INV-1")
    assert document.idempotency_key == SPACE.hasher().idempotency_key(document.key_hash)


def test_a_mapping_is_handed_over_as_it_was_listed():
    (document,) = read(STATEMENT)
    assert document.payload is STATEMENT
    assert document.name == "S-1"
    assert document.key_hash == read("S-1")[0].key_hash


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType, lambda items: defaultdict(str, items)])
def test_every_kind_of_mapping_is_one(kind):
    (document,) = read(kind(STATEMENT))
    assert document.fingerprint == read(STATEMENT)[0].fingerprint


def test_a_byte_order_mark_before_the_name_of_a_field_is_named():
    with pytest.raises(DocumentError, match=r"'\\ufeffno' begins with a byte order mark.*utf-8-sig"):
        read({"\ufeffno": "S-1", "amount": "10.00"})


def test_the_content_is_not_in_the_key():
    first, second = read(STATEMENT, STATEMENT | {"amount": "99.00"})
    assert first.key_hash == second.key_hash
    assert changed_fields(first.fingerprint, second.fingerprint) == ["amount"]


@pytest.mark.parametrize("fields", [None, ["amount", "no"]])
@pytest.mark.parametrize("name", [" S-1", "S-1\n", "\u00a0S-1"])
def test_r17_another_spelling_of_the_same_document_is_no_changed_content(name, fields):
    first, second = read(STATEMENT, STATEMENT | {"no": name}, fields=fields)
    assert first.key_hash == second.key_hash
    assert changed_fields(first.fingerprint, second.fingerprint) is None


def test_a_number_is_the_same_document_as_its_text():
    first, second = read(STATEMENT | {"no": 7}, STATEMENT | {"no": "7"})
    assert first.key_hash == second.key_hash
    assert changed_fields(first.fingerprint, second.fingerprint) is None


def test_the_whole_run_is_no_document():
    whole = reader().whole_run()
    assert (whole.name, whole.payload, whole.fingerprint) == (None, None, None)
    assert whole.key_hash not in {document.key_hash for document in read("-", "None", "null")}


def test_a_mapping_without_document_key_is_a_mistake_in_the_dag():
    with pytest.raises(ConfigurationError, match="amount"):
        read(STATEMENT, document_key=None)


def test_a_mapping_without_its_identity_is_a_bad_document():
    with pytest.raises(DocumentError, match="'no'"):
        read({"amount": "10.00"})


@pytest.mark.parametrize("identity", [None, "", 1.5, ["S-1"], {"a": 1}])
def test_a_mapping_with_an_identity_that_is_none_is_a_bad_document(identity):
    with pytest.raises(DocumentError):
        read({"no": identity})


# -- many --------------------------------------------------------------------------------------------------


def refused_and_read(items, size=2):
    refused = []
    chunks = list(reader().chunks(items, size, lambda item, error: refused.append((item, type(error)))))
    return refused, [[document.name for document in chunk] for chunk in chunks]


def test_bad_documents_are_reported_and_the_others_go_on():
    refused, chunks = refused_and_read(["a", "", "b", None, {"x": 1}, {"no": "c", 1: 2}, "d\x00", "e"])
    assert [item for item, _ in refused] == ["", None, {"x": 1}, {"no": "c", 1: 2}, "d\x00"]
    assert {kind for _, kind in refused} == {DocumentError}
    assert chunks == [["a"], ["b"], ["e"]]


def test_a_generator_is_read_no_further_than_the_chunk_at_work():
    taken = []

    def listing():
        for number in range(10):
            taken.append(number)
            yield f"S-{number}"

    chunks = reader().chunks(listing(), 3, lambda item, error: None)
    assert [document.name for document in next(chunks)] == ["S-0", "S-1", "S-2"]
    assert taken == [0, 1, 2]


def test_no_documents_are_no_chunks():
    assert refused_and_read([]) == ([], [])
    assert refused_and_read(iter(())) == ([], [])


@pytest.mark.parametrize("items", ["S-1", b"S-1", STATEMENT, None, 7])
def test_one_document_in_place_of_a_list_is_a_mistake_in_the_dag(items):
    with pytest.raises(ConfigurationError, match="document="):
        refused_and_read(items)


# -- repetitions -------------------------------------------------------------------------------------------

OTHER = STATEMENT | {"amount": "99.00"}


def names(documents):
    return [document.name for document in documents]


def test_c13_a_harmless_repetition_is_done_once():
    found = without_repetitions(read("a", "b", " a", "a"))
    assert names(found.unique) == ["a", "b"]
    assert names(found.repeated) == ["a", "a"]
    assert found.conflicting == []


def test_the_same_mapping_twice_is_a_repetition():
    found = without_repetitions(read(STATEMENT, dict(STATEMENT)))
    assert (len(found.unique), len(found.repeated)) == (1, 1)


def test_different_content_holds_back_every_mention():
    found = without_repetitions(read("a", STATEMENT, OTHER))
    assert names(found.unique) == ["a"]
    assert [document.payload for document, _ in found.conflicting] == [STATEMENT, OTHER]
    assert all("amount" in str(error) and "S-1" in str(error) for _, error in found.conflicting)


@pytest.mark.parametrize(
    "listed",
    [
        [STATEMENT, OTHER, STATEMENT],
        [STATEMENT, STATEMENT, OTHER],
        [STATEMENT, OTHER, OTHER],
        [STATEMENT, STATEMENT, OTHER, OTHER, STATEMENT],
        [STATEMENT, "S-1", STATEMENT],
    ],
)
def test_every_mention_is_accounted_for(listed):
    """Each listed document is in one of the three lists, so that none is missing in the counts."""
    found = without_repetitions(read("a", *listed))
    assert names(found.unique) == ["a"]
    assert found.repeated == []
    assert [document.payload for document, _ in found.conflicting] == listed


def test_a_name_and_a_mapping_of_the_same_document_contradict_each_other():
    found = without_repetitions(read("S-1", STATEMENT))
    assert found.unique == []
    assert len(found.conflicting) == 2


@pytest.mark.parametrize("mark", ["\ufeff", "\u00ef\u00bb\u00bf", "\u00fe\u00ff"])
def test_d14_a_byte_order_mark_is_named_in_whatever_encoding_the_file_was_read(mark: str) -> None:
    refused: list[Any] = []
    reader = DocumentReader(SPACE.hasher(), "no")
    list(reader.chunks([{f"{mark}no": "1"}], 10, lambda _, error: refused.append(str(error))))
    assert "byte order mark" in refused[0]
    assert 'encoding="utf-8-sig"' in refused[0]


def test_cells_beyond_the_header_are_named() -> None:
    lines = ["no,amount", "A,1,extra", "B,2"]
    refused: list[Any] = []
    reader = DocumentReader(SPACE.hasher(), "no")
    chunks = list(reader.chunks(csv.DictReader(lines), 10, lambda _, error: refused.append(str(error))))
    assert [document.name for chunk in chunks for document in chunk] == ["B"]
    assert "Its line has more cells than the header has names" in refused[0]
    # The advice.
    named = csv.DictReader(lines, restkey="rest")
    assert [len(chunk) for chunk in reader.chunks(named, 10, pytest.fail)] == [2]


def test_rows_of_a_database_are_told_to_become_mappings() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT 'A' AS no, 1 AS amount").fetchall()
    refused: list[Any] = []
    reader = DocumentReader(SPACE.hasher(), "no")
    assert list(reader.chunks(rows, 10, lambda _, error: refused.append(str(error)))) == []
    assert "With document_key='no' a document is a mapping, not Row" in refused[0]
    assert "dict(row)" in refused[0]
    [[document]] = reader.chunks([dict(row) for row in rows], 10, pytest.fail)
    assert (document.name, document.payload) == ("A", {"no": "A", "amount": 1})
