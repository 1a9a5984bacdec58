"""The words that parameters take: type checkers read them here, and so do the checks when a DAG is parsed."""

from __future__ import annotations

from typing import Literal

EffectName = Literal["external", "database"]
OncePer = Literal["date", "document"]
CallPer = Literal["document", "batch"]
OnDuplicate = Literal["replay", "skip", "fail"]
OnConcurrent = Literal["wait", "fail"]
OnOtherRun = Literal["fail", "replay"]
OnEmpty = Literal["warn", "fail", "allow"]
OnRepeated = Literal["warn", "fail"]
Otherwise = Literal["fail", "warn"]
Mode = Literal["enforce", "observe"]
WhenInDoubt = Literal["hold", "ask", "retry"]
OnBreak = Literal["fail", "warn", "ask"]
OnRepeatedKey = Literal["fail", "warn"]
AlertEvent = Literal["failure", "retry", "skipped", "dag_failure", "deadline", "success"]


def one_of(words: tuple[str, ...]) -> str:
    """Return words as a message offers them.

    >>> one_of(("replay", "skip", "fail"))
    "'replay', 'skip' or 'fail'"
    """
    quoted = [repr(word) for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"
