"""Every working day the payments that are due go to the bank as one file. No payment goes twice.

``due_payments`` lists a payment every day until the bank has confirmed it. ``once_per="document"`` keeps its
date out of the key, so that being listed again tomorrow is not being paid again.

It needs the connection ``core_banking`` (PostgreSQL, with the ledger in it), the table ``payment`` and the
variable ``bank_folder``: a local folder that stands in for the bank's SFTP server. With a real one,
``SFTPHook`` writes and renames; everything else stays.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as ET

import pendulum
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import Variable, dag

from airflow_guard import External, IdempotentOperator, business_day

DUE = """
    SELECT end_to_end_id, iban, CAST(amount AS text) FROM payment
    WHERE due_date <= %s AND confirmed_at IS NULL ORDER BY end_to_end_id
"""


def due_payments(business_date):
    for end_to_end_id, iban, amount in PostgresHook("core_banking").get_records(DUE, (business_date,)):
        yield {"end_to_end_id": end_to_end_id, "iban": iban, "amount": amount}


def place_of(batch_id, name):
    return Path(Variable.get("bank_folder")) / name.format(batch_id)


def send(documents, batch_id, effect):
    """Write the file under a name that the bank does not read. The rename is what sends it."""
    total = sum(Decimal(each["amount"]) for each in documents)
    hidden = place_of(batch_id, "in/{}.tmp")
    hidden.write_bytes(payment_order(batch_id, documents, total))
    with effect:
        hidden.rename(place_of(batch_id, "in/{}.xml"))
    return {"file": f"{batch_id}.xml", "payments": len(documents), "total": str(total)}


def payment_order(batch_id, documents, total):
    order = ET.Element("Document")
    # The bank refuses a message id that it has seen: the same batch always carries the same one.
    ET.SubElement(order, "MsgId").text = batch_id
    ET.SubElement(order, "CtrlSum").text = str(total)
    for each in documents:
        payment = ET.SubElement(order, "CdtTrfTxInf")
        for tag, value in (("EndToEndId", "end_to_end_id"), ("IBAN", "iban"), ("InstdAmt", "amount")):
            ET.SubElement(payment, tag).text = each[value]
    return ET.tostring(order, encoding="utf-8", xml_declaration=True)


def arrived(batch_id):
    """Did the bank get this file? Asked when the process that sent it did not say how it ended."""
    if place_of(batch_id, "in/{}.xml").exists() or place_of(batch_id, "ack/{}.xml").exists():
        return True
    if place_of(batch_id, "in/{}.tmp").exists():
        return False  # written, and not renamed
    return None  # the bank takes files away: that none is there proves nothing


@dag(
    schedule="0 14 * * MON-FRI",
    start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"),
    catchup=False,  # today's file has what was due while the DAG was paused
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
)
def payment_file():
    IdempotentOperator(
        task_id="send",
        operation="send",
        python_callable=send,
        documents=due_payments,
        document_key="end_to_end_id",
        once_per="document",
        business_date=business_day("ECB", otherwise="skip"),  # no payments on TARGET2 holidays
        call_per="batch",
        batch_size=1000,
        # A rename that hangs is given up by the server after minutes. Until then "not there" proves nothing. Where the
        # folder cannot tell at all, a person is asked in the Airflow UI, and the task goes on with the answer.
        side_effect=External(verify=arrived, settle_after=timedelta(minutes=30), in_doubt="ask"),
        ledger_conn_id="core_banking",
    )


payment_file()
