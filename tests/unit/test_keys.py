"""Keys: what is equal, what is not, what is refused. These rules decide whether a payment is made again."""

from __future__ import annotations

import hashlib
import unicodedata
import uuid
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_guard.core.errors import ConfigurationError, DocumentError
from airflow_guard.core.keys import (
    DATELESS,
    MAX_CYCLE_LENGTH,
    MAX_DOCUMENT_LENGTH,
    MAX_NAME_LENGTH,
    NORMALISER_VERSION,
    NORMALISERS,
    KeySpace,
    batch_id_of,
    normalise_document,
)

DATE = date(2025, 3, 31)
SPACE = KeySpace("bank_statements", "post_statement", DATE)


def key_of(document: str | None = None, **parts) -> str:
    return replace(SPACE, **parts).hasher().key_hash(document)


# -- what is equal -----------------------------------------------------------------------------------------

R17_SAME_AS_INV_1 = ["INV-1", "INV-1 ", " INV-1", "\tINV-1\n", "\u00a0INV-1\u3000"]
R17_ANOTHER = ["inv-1", "ÍNV-1", "INV‑1", "INV–1", "INV-01", "INV - 1", "\u0406NV-1", "INV\u22121"]  # noqa: RUF001
R17_REFUSED = [
    "INV-1\u200b",
    "\u200bINV-1",
    "INV\u200d-1",
    "\ufeffINV-1",
    "INV-1\u00ad",
    "INV\u2060-1",
    "INV-1\ufe0f",
]


@pytest.mark.parametrize("text", R17_SAME_AS_INV_1)
def test_r17_surrounding_white_space_makes_no_other_key(text):
    assert normalise_document(text) == "INV-1"


def test_r17_case_accent_and_look_alikes_are_other_keys():
    names = ["INV-1", *R17_ANOTHER]
    assert len({key_of(normalise_document(name)) for name in names}) == len(names)


@pytest.mark.parametrize("text", R17_REFUSED)
def test_r17_invisible_characters_are_refused_and_named(text):
    with pytest.raises(DocumentError, match=r"U\+[0-9A-F]{4} *\)"):
        normalise_document(text)


def test_r17_composed_and_decomposed_accents_are_one_key():
    composed, decomposed = "RÉGION-É", "RE\u0301GION-E\u0301"
    assert composed != decomposed
    assert normalise_document(composed) == normalise_document(decomposed) == composed


@pytest.mark.parametrize(("sign", "letter"), [("\u212b", "\u00c5"), ("\u212a", "K"), ("\u2126", "\u03a9")])
def test_signs_that_unicode_calls_the_same_letter_are_one_key(sign, letter):
    assert normalise_document(f"{sign}-7") == normalise_document(f"{letter}-7")


def test_compatibility_forms_stay_apart():
    assert normalise_document("ﬁ-1") != normalise_document("fi-1")
    assert normalise_document("INV-１") != normalise_document("INV-1")  # noqa: RUF001


def test_white_space_inside_is_significant():
    assert key_of(normalise_document("A B")) != key_of(normalise_document("A  B"))


def test_numbers_and_uuids_are_their_usual_text():
    value = uuid.UUID("12345678123456781234567812345678")
    assert normalise_document(7) == normalise_document("7") == "7"
    assert normalise_document(-7) == "-7"
    assert normalise_document(value) == str(value)


@given(st.text(max_size=300))
def test_normalising_twice_is_normalising_once(text):
    try:
        once = normalise_document(text)
    except DocumentError:
        return
    assert normalise_document(once) == once
    assert once == once.strip()
    assert unicodedata.is_normalized("NFC", once)
    assert 1 <= len(once) <= MAX_DOCUMENT_LENGTH
    assert not {unicodedata.category(character) for character in once} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    once.encode()


@given(st.text(min_size=1, max_size=40))
def test_equivalent_spellings_get_one_outcome(text):
    def outcome(value: str) -> str:
        try:
            return normalise_document(value)
        except DocumentError:
            return "refused"

    assert outcome(text) == outcome(unicodedata.normalize("NFD", text)) == outcome(f" {text}\t")


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["", " ", "\n\t", "\u00a0", "A\x00B", "A\nB", "A\x7fB", "A\u2028B", "A\u2029B", "A\ud800", "A\u202eB",
              "A\u3164", "\u115f", "A\u034fB", "A\U000e0100"],
)  # fmt: skip
def test_texts_that_people_cannot_tell_apart_are_refused(value):
    with pytest.raises(DocumentError):
        normalise_document(value)


@pytest.mark.parametrize(
    "value",
    [None, True, False, 1.0, float("nan"), Decimal(1), b"INV-1", DATE, ["INV-1"], {"id": 1}, object()],
)
def test_values_that_are_no_identity_are_refused_with_their_type(value):
    with pytest.raises(DocumentError, match=type(value).__name__):
        normalise_document(value)


def test_c34_the_longest_document_is_taken_and_one_character_more_is_refused():
    longest = "🧾" * MAX_DOCUMENT_LENGTH
    assert normalise_document(longest) == longest
    with pytest.raises(DocumentError, match="256 characters"):
        normalise_document("x" * 256)
    with pytest.raises(DocumentError, match="256 characters"):
        normalise_document("🧾" * 256)


def test_the_length_counts_what_is_stored():
    assert len(normalise_document("e\u0301" * MAX_DOCUMENT_LENGTH)) == MAX_DOCUMENT_LENGTH
    assert normalise_document(" " * 1000 + "INV-1") == "INV-1"


def test_c34_documents_that_differ_in_the_last_character_are_two_keys():
    assert key_of("x" * 254 + "a") != key_of("x" * 254 + "b")


# -- parts -------------------------------------------------------------------------------------------------


def test_c34_neighbouring_parts_do_not_run_into_each_other():
    assert key_of("d", key_namespace="ab", operation="c") != key_of("d", key_namespace="a", operation="bc")
    assert key_of("d", operation="ab", cycle="c") != key_of("d", operation="a", cycle="bc")
    assert key_of("bc", cycle="a") != key_of("c", cycle="ab")
    assert key_of("abc") != key_of("bc", cycle="a")


def test_a_part_that_imitates_the_separators_makes_no_other_key_equal():
    assert key_of("1:a", cycle="b") != key_of("a", cycle="b1:1")
    assert key_of("-") != key_of(None)
    assert key_of("0:-") != key_of(None)


PART = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=12)


@given(st.lists(st.tuples(PART, PART, PART, PART), min_size=2, max_size=2, unique=True))
def test_c34_different_parts_are_different_keys(spaces):
    assume(all(unicodedata.is_normalized("NFC", part) for parts in spaces for part in parts))
    first, second = (
        key_of(document, key_namespace=namespace, operation=operation, cycle=cycle)
        for namespace, operation, cycle, document in spaces
    )
    assert first != second


@pytest.mark.parametrize(
    "change",
    [
        {"key_namespace": "other"},
        {"operation": "other"},
        {"cycle": "am"},
        {"business_date": date(2025, 4, 1)},
    ],
)
def test_each_part_makes_another_key(change):
    assert key_of("INV-1", **change) != key_of("INV-1")
    assert key_of(None, **change) != key_of(None)


def test_once_per_document_forgets_the_date_and_nothing_else():
    def once(document: str, **parts) -> str:
        return key_of(document, once_per="document", **parts)

    assert once("INV-1") == once("INV-1", business_date=date(2030, 1, 1))
    assert once("INV-1") != key_of("INV-1")
    assert once("INV-1") != once("INV-1", operation="other")
    assert replace(SPACE, once_per="document").key_date == DATELESS
    assert SPACE.key_date == DATE


def test_the_deployment_is_in_the_receivers_key_only():
    ours, theirs = SPACE.hasher(), replace(SPACE, deployment="laptop").hasher()
    key_hash = ours.key_hash("INV-1")
    assert key_hash == theirs.key_hash("INV-1")
    assert ours.idempotency_key(key_hash) != theirs.idempotency_key(key_hash)


def test_a_generation_has_an_idempotency_key_of_its_own():
    hasher = SPACE.hasher()
    key_hash = hasher.key_hash("INV-1")
    keys = [hasher.idempotency_key(key_hash, generation) for generation in (1, 2, 11)]
    assert len({key_hash, *keys}) == 4
    assert hasher.idempotency_key(key_hash) == keys[0]


def test_keys_fit_every_receiver():
    key_hash = key_of("🧾" * 255, key_namespace="n" * 250, operation="o" * 250, cycle="c" * 100)
    for key in (key_hash, SPACE.hasher().idempotency_key(key_hash), batch_id_of([key_hash])):
        assert len(key) == 32
        assert set(key) <= set("0123456789abcdef")


def test_a_key_never_changes_between_releases():
    """Written out by hand: a key that changes makes all history look undone."""
    parts = b"15:bank_statements14:post_statement10:2025-03-310:"
    assert key_of("INV-1") == hashlib.sha256(parts + b"5:INV-1").hexdigest()[:32]
    assert key_of(None) == hashlib.sha256(parts + b"-").hexdigest()[:32]
    assert key_of("INV-1") == "ed4eda02fd163dc65bbdca66af7f7253"
    expected = hashlib.sha256(b"ed4eda02fd163dc65bbdca66af7f7253/1/default").hexdigest()[:32]
    assert SPACE.hasher().idempotency_key(key_of("INV-1")) == expected
    assert NORMALISERS[NORMALISER_VERSION] is normalise_document


def test_a_batch_is_known_by_its_members_alone():
    assert batch_id_of(["b", "a"]) == batch_id_of(["a", "b"])
    assert batch_id_of(iter(["a", "b"])) == batch_id_of(["a", "b"])
    assert len({batch_id_of(members) for members in (["a"], ["b"], ["a", "b"], ["ab"], [])}) == 5


# -- refused parts -----------------------------------------------------------------------------------------

BAD_NAMES = ["", " ", " x", "x ", "x\n", "a\x00b", "a\u200bb", "e\u0301", "a\u2028b", None, 7]


@pytest.mark.parametrize("part", ["key_namespace", "operation", "deployment"])
@pytest.mark.parametrize("value", [*BAD_NAMES, "x" * (MAX_NAME_LENGTH + 1)])
def test_parts_that_cannot_be_compared_are_refused_by_name(part, value):
    with pytest.raises(ConfigurationError, match=part):
        replace(SPACE, **{part: value})


@pytest.mark.parametrize("value", [*BAD_NAMES[1:-2], 7, "x" * (MAX_CYCLE_LENGTH + 1)])
def test_cycles_that_cannot_be_compared_are_refused(value):
    with pytest.raises(ConfigurationError, match="cycle"):
        replace(SPACE, cycle=value)


@pytest.mark.parametrize("length", [1, 249, 250])
def test_c34_a_dag_id_of_250_characters_is_taken(length):
    assert key_of("INV-1", key_namespace="d" * length)


def test_a_cycle_with_once_per_document_is_refused():
    with pytest.raises(ConfigurationError, match="cycle"):
        replace(SPACE, once_per="document", cycle="am")


def test_another_once_per_is_refused():
    with pytest.raises(ConfigurationError, match="once_per"):
        replace(SPACE, once_per="month")


@pytest.mark.parametrize("value", [datetime(2025, 3, 31), "2025-03-31", None])  # noqa: DTZ001
def test_only_a_date_is_a_business_date(value):
    """An instant would make another key than its date does, and nobody would see why."""
    with pytest.raises(ConfigurationError, match="business_date"):
        replace(SPACE, business_date=value)


def test_the_date_that_stands_for_no_date_is_no_business_date():
    with pytest.raises(ConfigurationError, match="1900-01-01"):
        replace(SPACE, business_date=DATELESS)
    replace(SPACE, business_date=DATELESS, once_per="document")


def test_a_key_reads_well_in_messages():
    assert SPACE.describe("INV-1") == "bank_statements / post_statement / 2025-03-31 / INV-1"
    assert replace(SPACE, cycle="am").describe(None).endswith("2025-03-31 / cycle am / (whole run)")
    assert "any date" in replace(SPACE, once_per="document").describe("INV-1")
