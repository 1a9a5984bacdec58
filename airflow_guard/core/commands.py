"""The command lines that messages hand to the reader, so that nobody has to look them up at night."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from airflow_guard.core.decisions import Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "airflow-guard"
# Up to the last @, since a password that was not encoded may hold one; and a query parameter of some drivers.
_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*:)\S*@|([?&]password=)[^&\s]*")


def resolve_command(key_hash: str, *, decision: str = "happened", ledger: str | None = None) -> str:
    """Return the command line that settles a key.

    >>> resolve_command("3f" * 16)
    'airflow-guard resolve --key 3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f --happened --reason "…"'

    :param key_hash: the key's 32 hex characters.
    :param decision: a :class:`~airflow_guard.core.decisions.Decision` or its name.
    :param ledger: connection id or URL of the ledger if it is not the configured one; a password in a URL is
        replaced by ``***``.
    :raises ResolutionError: there is no such decision.
    """
    option = Decision.of(decision).option
    return f'{PROGRAM} resolve{_ledger_option(ledger)} --key {key_hash} {option} --reason "…"'


def resolve_day_command(dag_id: str, business_date: str, operation: str, *, ledger: str | None = None) -> str:
    """Return the command line that settles all keys in doubt of an operation and date alike.

    >>> resolve_day_command("payments", "2026-01-30", "send")
    'airflow-guard resolve payments 2026-01-30 send --all --happened --reason "…"'

    :param ledger: as for :func:`resolve_command`.
    """
    names = f"{shlex.quote(dag_id)} {business_date} {shlex.quote(operation)}"
    return f'{PROGRAM} resolve{_ledger_option(ledger)} {names} --all --happened --reason "…"'


def resolve_document_command(
    space: tuple[str, str, str], document: str | None, *, decision: str, ledger: str | None = None
) -> str:
    """Return the command line that settles a document that is named by itself, not by its key.

    >>> resolve_document_command(("payments", "send", "2026-01-30"), "PAY-18", decision="waive")
    'airflow-guard resolve payments 2026-01-30 send PAY-18 --waive --reason "…"'

    :param space: key namespace, operation and business date.
    :param document: ``None``: the run as a whole.
    :param decision: as for :func:`resolve_command`.
    :param ledger: as for :func:`resolve_command`.
    """
    namespace, operation, day = space
    words = [namespace, day, operation, *([] if document is None else [document])]
    options = f'{Decision.of(decision).option} --reason "…"'
    return f"{PROGRAM} resolve{_ledger_option(ledger)} {_names_and_options(words, options)}"


def drop_command(
    space: tuple[str, str, str],
    documents: Sequence[str | None],
    *,
    every: bool = False,
    cycle: str = "",
    ledger: str | None = None,
) -> str:
    """Return the command line that drops documents that were listed and are not done.

    >>> drop_command(("payments", "send", "2026-01-30"), ["PAY-18"])
    'airflow-guard drop payments 2026-01-30 send PAY-18 --reason "…"'
    >>> drop_command(("payments", "send", "2026-01-30"), ["PAY-18"], every=True)
    'airflow-guard drop payments 2026-01-30 send --all --reason "…"'

    :param space: key namespace, operation and business date.
    :param documents: none of them is the run as a whole, or it is the only one.
    :param every: all that nobody lists any more.
    :param ledger: as for :func:`resolve_command`.
    """
    namespace, operation, day = space
    words = [namespace, day, operation, *([] if every else [each for each in documents if each is not None])]
    options = [
        *(["--all"] if every else []),
        *([f"--cycle {shlex.quote(cycle)}"] if cycle else []),
        '--reason "…"',
    ]
    return f"{PROGRAM} drop{_ledger_option(ledger)} {_names_and_options(words, ' '.join(options))}"


def _names_and_options(names: Sequence[str], options: str) -> str:
    """Return names and options of a command line; what begins with a dash is a name only after two dashes."""
    named = " ".join(shlex.quote(name) for name in names)
    return f"{options} -- {named}" if any(name.startswith("-") for name in names) else f"{named} {options}"


def adopt_command(namespace: str, operation: str, *, ledger: str | None = None) -> str:
    """Return the command line that records as done what was done before the ledger kept watch.

    >>> adopt_command("statements", "post")
    'airflow-guard adopt --namespace statements --operation post --csv done.csv --reason "…"'

    :param ledger: as for :func:`resolve_command`.
    """
    names = f"--namespace {shlex.quote(namespace)} --operation {shlex.quote(operation)}"
    return f'{PROGRAM} adopt{_ledger_option(ledger)} {names} --csv done.csv --reason "…"'


def close_fail_over_command(*, ledger: str | None = None) -> str:
    """Return the command line that closes the open fail-overs.

    >>> close_fail_over_command()
    'airflow-guard failover --close --reason "…"'

    :param ledger: as for :func:`resolve_command`.
    """
    return f'{PROGRAM} failover{_ledger_option(ledger)} --close --reason "…"'


def add_partitions_command(*, ledger: str | None = None) -> str:
    """Return the command line that adds partitions for the months ahead.

    >>> add_partitions_command()
    'airflow-guard migrate --partitions-ahead 3'

    :param ledger: as for :func:`resolve_command`.
    """
    return f"{PROGRAM} migrate{_ledger_option(ledger)} --partitions-ahead 3"


def show_command(key_hash: str, *, ledger: str | None = None) -> str:
    """Return the command line that shows the whole life of a key.

    >>> show_command("3f" * 16, ledger="core_banking")
    'airflow-guard show --ledger core_banking --key 3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f'

    :param ledger: as for :func:`resolve_command`.
    """
    return f"{PROGRAM} show{_ledger_option(ledger)} --key {key_hash}"


def show_day_command(dag_id: str, business_date: str, *, ledger: str | None = None) -> str:
    """Return the command line that shows the keys of a DAG and date.

    >>> show_day_command("statements", "2026-01-31")
    'airflow-guard show statements 2026-01-31'

    :param ledger: as for :func:`resolve_command`.
    """
    return f"{PROGRAM} show{_ledger_option(ledger)} {shlex.quote(dag_id)} {business_date}"


def breaks_command(
    dag_id: str, business_date: str, *, operation: str, explain: bool = False, ledger: str | None = None
) -> str:
    """Return the command line that lists the breaks of a date, or accepts all of them.

    >>> breaks_command("statements", "2026-01-31", operation="reconcile", explain=True)
    'airflow-guard breaks statements 2026-01-31 --operation reconcile --all --explain --reason "…"'

    :param ledger: as for :func:`resolve_command`.
    """
    where = f"{shlex.quote(dag_id)} {business_date} --operation {shlex.quote(operation)}"
    decision = ' --all --explain --reason "…"' if explain else ""
    return f"{PROGRAM} breaks{_ledger_option(ledger)} {where}{decision}"


def rename_command(old: tuple[str, str], new: tuple[str, str], *, ledger: str | None = None) -> str:
    """Return the command line that renames an operation in the ledger.

    >>> rename_command(("statements", "post"), ("statements", "post_statement"))
    'airflow-guard rename statements post statements post_statement --reason "…"'

    :param old: ``key_namespace`` and ``operation`` that the ledger knows.
    :param new: those that the code has now.
    :param ledger: as for :func:`resolve_command`.
    """
    names = " ".join(shlex.quote(name) for name in (*old, *new))
    return f'{PROGRAM} rename{_ledger_option(ledger)} {names} --reason "…"'


def rerun_command(key_hash: str, option: str = "", *, ledger: str | None = None) -> str:
    """Return the command line that authorises a rerun of a key, or says what became of its reversal.

    >>> rerun_command("3f" * 16, "--without-reversal")
    'airflow-guard rerun --key 3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f --without-reversal --reason "…"'

    :param ledger: as for :func:`resolve_command`.
    """
    said = f" {option}" if option else ""
    return f'{PROGRAM} rerun{_ledger_option(ledger)} --key {key_hash}{said} --reason "…"'


def backfill_command(dag_id: str, first: str, last: str) -> str:
    """Return Airflow's command line that clears the runs of a span of logical dates, and so executes them again.

    >>> print(backfill_command("statements", "2026-01-01", "2026-01-31T23:59:59").replace(" --", "\\n--"))
    airflow backfill create
    --dag-id statements
    --from-date 2026-01-01
    --to-date 2026-01-31T23:59:59
    --reprocess-behavior completed
    --run-on-latest-version

    :param first: of the logical dates, inclusive, as ``last``.
    """
    return (
        f"airflow backfill create --dag-id {shlex.quote(dag_id)} --from-date {first} --to-date {last} "
        "--reprocess-behavior completed --run-on-latest-version"
    )


def without_password(url: str) -> str:
    """Return a URL as it may be printed.

    >>> without_password("postgresql://guard:secret@db/ledger")
    'postgresql://guard:***@db/ledger'
    """
    return _PASSWORD.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", url)


def _ledger_option(ledger: str | None) -> str:
    return "" if ledger is None else f" --ledger {shlex.quote(without_password(ledger))}"
