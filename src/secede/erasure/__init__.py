"""The erasure of one client, from a signed request to a signed receipt that verifies offline.

Other packages import from here alone; the parts behind these names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secede.erasure.backend import FederationBackend as FederationBackend
    from secede.erasure.canonical_json import parse_json as parse_json
    from secede.erasure.canonical_json import read_bounded as read_bounded
    from secede.erasure.canonical_json import to_canonical as to_canonical
    from secede.erasure.defences.gate import Counts as Counts
    from secede.erasure.defences.gate import Tally as Tally
    from secede.erasure.defences.gate import tally as tally
    from secede.erasure.defences.guard import UpdateTrace as UpdateTrace
    from secede.erasure.defences.reply_checks import WRONG_SAMPLES as WRONG_SAMPLES
    from secede.erasure.defences.state_message import pack_state as pack_state
    from secede.erasure.defences.state_message import unpack_state as unpack_state
    from secede.erasure.defences.weight_layout import last_layer as last_layer
    from secede.erasure.documents.acknowledgement import (
        ACKNOWLEDGEMENT_TYPE as ACKNOWLEDGEMENT_TYPE,
    )
    from secede.erasure.documents.acknowledgement import Acknowledgement as Acknowledgement
    from secede.erasure.documents.acknowledgement import (
        verify_acknowledgement as verify_acknowledgement,
    )
    from secede.erasure.documents.data_commitment import MAX_PROOF_BYTES as MAX_PROOF_BYTES
    from secede.erasure.documents.data_commitment import MAX_SAMPLE_BYTES as MAX_SAMPLE_BYTES
    from secede.erasure.documents.data_commitment import Commitment as Commitment
    from secede.erasure.documents.data_commitment import Proof as Proof
    from secede.erasure.documents.data_commitment import SampleProof as SampleProof
    from secede.erasure.documents.data_commitment import check_commitment as check_commitment
    from secede.erasure.documents.data_commitment import check_sample as check_sample
    from secede.erasure.documents.data_commitment import commit_to_samples as commit_to_samples
    from secede.erasure.documents.data_commitment import new_salt as new_salt
    from secede.erasure.documents.data_commitment import prove_sample as prove_sample
    from secede.erasure.documents.ledger_rows import MAX_NAMES as MAX_NAMES
    from secede.erasure.documents.ledger_rows import DeliveredBody as DeliveredBody
    from secede.erasure.documents.ledger_rows import Head as Head
    from secede.erasure.documents.ledger_rows import ModelBody as ModelBody
    from secede.erasure.documents.plan import GuardLimits as GuardLimits
    from secede.erasure.documents.plan import Plan as Plan
    from secede.erasure.documents.receipt import BY_OPERATOR as BY_OPERATOR
    from secede.erasure.documents.receipt import MAX_RECEIPT_BYTES as MAX_RECEIPT_BYTES
    from secede.erasure.documents.receipt import STANDING_LIMITS as STANDING_LIMITS
    from secede.erasure.documents.receipt import MethodPart as MethodPart
    from secede.erasure.documents.receipt import Scope as Scope
    from secede.erasure.documents.receipt import Score as Score
    from secede.erasure.documents.receipt import Setting as Setting
    from secede.erasure.documents.receipt import Software as Software
    from secede.erasure.documents.receipt import Verification as Verification
    from secede.erasure.documents.request import MAX_REQUEST_BYTES as MAX_REQUEST_BYTES
    from secede.erasure.documents.request import TRIGGERS as TRIGGERS
    from secede.erasure.documents.request import Request as Request
    from secede.erasure.documents.request import check_trigger as check_trigger
    from secede.erasure.documents.request import new_request as new_request
    from secede.erasure.documents.request import sign_request as sign_request
    from secede.erasure.documents.request import verify_request as verify_request
    from secede.erasure.planning.options import EraseOptions as EraseOptions
    from secede.erasure.planning.options import check_options as check_options
    from secede.erasure.planning.options import options_from_json as options_from_json
    from secede.erasure.planning.options import options_to_json as options_to_json
    from secede.erasure.planning.plan_table import plan_table as plan_table
    from secede.erasure.receipts.page import describe_duration as describe_duration
    from secede.erasure.receipts.page import write_page as write_page
    from secede.erasure.receipts.verify import Verified as Verified
    from secede.erasure.receipts.verify import countersign_receipt as countersign_receipt
    from secede.erasure.receipts.verify import unverified_statement as unverified_statement
    from secede.erasure.receipts.verify import verify_receipt as verify_receipt
    from secede.erasure.signing.dsse import ENVELOPE_FIELDS as ENVELOPE_FIELDS
    from secede.erasure.signing.dsse import payload_type as payload_type
    from secede.erasure.signing.keys import Signers as Signers
    from secede.erasure.signing.keys import generate_key_pair as generate_key_pair
    from secede.erasure.signing.keys import key_id as key_id
    from secede.erasure.signing.keys import load_private_key as load_private_key
    from secede.erasure.signing.keys import load_public_key as load_public_key
    from secede.erasure.storage.home import Client as Client
    from secede.erasure.storage.home import Federation as Federation
    from secede.erasure.storage.home import Home as Home
    from secede.erasure.storage.journal import Journal as Journal
    from secede.erasure.storage.journal_entries import Entry as Entry
    from secede.erasure.storage.json_files import load_document as load_document
    from secede.erasure.storage.json_files import save_document as save_document
    from secede.erasure.storage.ledger import Ledger as Ledger
    from secede.erasure.storage.ledger import export_ledger as export_ledger
    from secede.erasure.storage.ledger import rows_of_export as rows_of_export
    from secede.erasure.storage.ledger import verify_ledger as verify_ledger
    from secede.erasure.storage.locks import HomeLock as HomeLock
    from secede.erasure.storage.locks import lock_home as lock_home
    from secede.erasure.storage.model_registry import Candidate as Candidate
    from secede.erasure.storage.model_registry import Model as Model
    from secede.erasure.storage.model_registry import ModelRegistry as ModelRegistry
    from secede.erasure.storage.transition_details import PLANNED as PLANNED
    from secede.erasure.storage.transition_details import PROMOTED as PROMOTED
    from secede.erasure.storage.transition_details import RECEIVED as RECEIVED
    from secede.erasure.types import Count as Count
    from secede.erasure.types import Digest as Digest
    from secede.erasure.types import Document as Document
    from secede.erasure.types import Fraction as Fraction
    from secede.erasure.types import Name as Name
    from secede.erasure.types import Timestamp as Timestamp
    from secede.erasure.types import check_name as check_name
    from secede.erasure.types import describe_errors as describe_errors
    from secede.erasure.types import format_time as format_time
    from secede.erasure.types import is_name as is_name
    from secede.erasure.types import parse_time as parse_time
    from secede.erasure.workflow.consistency import check_home as check_home
    from secede.erasure.workflow.consistency import receipt_heads as receipt_heads
    from secede.erasure.workflow.erase import Outcome as Outcome
    from secede.erasure.workflow.erase import close_request as close_request
    from secede.erasure.workflow.erase import erase as erase
    from secede.erasure.workflow.erase import plan as plan
    from secede.erasure.workflow.erase import receive as receive
    from secede.erasure.workflow.intake import enter_into_ledger as enter_into_ledger
    from secede.erasure.workflow.intake import write_acknowledgement as write_acknowledgement
    from secede.erasure.workflow.measurement import score_beside_reference as score_beside_reference
    from secede.erasure.workflow.session import delivered_rows as delivered_rows

_HOMES = {
    "backend": ("FederationBackend",),
    "canonical_json": ("parse_json", "read_bounded", "to_canonical"),
    "defences.gate": ("Counts", "Tally", "tally"),
    "defences.guard": ("UpdateTrace",),
    "defences.reply_checks": ("WRONG_SAMPLES",),
    "defences.state_message": ("pack_state", "unpack_state"),
    "defences.weight_layout": ("last_layer",),
    "documents.acknowledgement": (
        "ACKNOWLEDGEMENT_TYPE",
        "Acknowledgement",
        "verify_acknowledgement",
    ),
    "documents.data_commitment": (
        "Commitment",
        "MAX_PROOF_BYTES",
        "MAX_SAMPLE_BYTES",
        "Proof",
        "SampleProof",
        "check_commitment",
        "check_sample",
        "commit_to_samples",
        "new_salt",
        "prove_sample",
    ),
    "documents.ledger_rows": ("DeliveredBody", "Head", "MAX_NAMES", "ModelBody"),
    "documents.plan": ("GuardLimits", "Plan"),
    "documents.receipt": (
        "BY_OPERATOR",
        "MAX_RECEIPT_BYTES",
        "MethodPart",
        "STANDING_LIMITS",
        "Scope",
        "Score",
        "Setting",
        "Software",
        "Verification",
    ),
    "documents.request": (
        "MAX_REQUEST_BYTES",
        "Request",
        "TRIGGERS",
        "check_trigger",
        "new_request",
        "sign_request",
        "verify_request",
    ),
    "planning.options": ("EraseOptions", "check_options", "options_from_json", "options_to_json"),
    "planning.plan_table": ("plan_table",),
    "receipts.page": ("describe_duration", "write_page"),
    "receipts.verify": (
        "Verified",
        "countersign_receipt",
        "unverified_statement",
        "verify_receipt",
    ),
    "signing.dsse": ("ENVELOPE_FIELDS", "payload_type"),
    "signing.keys": (
        "Signers",
        "generate_key_pair",
        "key_id",
        "load_private_key",
        "load_public_key",
    ),
    "storage.home": ("Client", "Federation", "Home"),
    "storage.journal": ("Journal",),
    "storage.journal_entries": ("Entry",),
    "storage.json_files": ("load_document", "save_document"),
    "storage.ledger": ("Ledger", "export_ledger", "rows_of_export", "verify_ledger"),
    "storage.locks": ("HomeLock", "lock_home"),
    "storage.model_registry": ("Candidate", "Model", "ModelRegistry"),
    "storage.transition_details": ("PLANNED", "PROMOTED", "RECEIVED"),
    "types": (
        "Count",
        "Digest",
        "Document",
        "Fraction",
        "Name",
        "Timestamp",
        "check_name",
        "describe_errors",
        "format_time",
        "is_name",
        "parse_time",
    ),
    "workflow.consistency": ("check_home", "receipt_heads"),
    "workflow.erase": ("Outcome", "close_request", "erase", "plan", "receive"),
    "workflow.intake": ("enter_into_ledger", "write_acknowledgement"),
    "workflow.measurement": ("score_beside_reference",),
    "workflow.session": ("delivered_rows",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ACKNOWLEDGEMENT_TYPE",
    "BY_OPERATOR",
    "ENVELOPE_FIELDS",
    "MAX_NAMES",
    "MAX_PROOF_BYTES",
    "MAX_RECEIPT_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_SAMPLE_BYTES",
    "PLANNED",
    "PROMOTED",
    "RECEIVED",
    "STANDING_LIMITS",
    "TRIGGERS",
    "WRONG_SAMPLES",
    "Acknowledgement",
    "Candidate",
    "Client",
    "Commitment",
    "Count",
    "Counts",
    "DeliveredBody",
    "Digest",
    "Document",
    "Entry",
    "EraseOptions",
    "Federation",
    "FederationBackend",
    "Fraction",
    "GuardLimits",
    "Head",
    "Home",
    "HomeLock",
    "Journal",
    "Ledger",
    "MethodPart",
    "Model",
    "ModelBody",
    "ModelRegistry",
    "Name",
    "Outcome",
    "Plan",
    "Proof",
    "Request",
    "SampleProof",
    "Scope",
    "Score",
    "Setting",
    "Signers",
    "Software",
    "Tally",
    "Timestamp",
    "UpdateTrace",
    "Verification",
    "Verified",
    "check_commitment",
    "check_home",
    "check_name",
    "check_options",
    "check_sample",
    "check_trigger",
    "close_request",
    "commit_to_samples",
    "countersign_receipt",
    "delivered_rows",
    "describe_duration",
    "describe_errors",
    "enter_into_ledger",
    "erase",
    "export_ledger",
    "format_time",
    "generate_key_pair",
    "is_name",
    "key_id",
    "last_layer",
    "load_document",
    "load_private_key",
    "load_public_key",
    "lock_home",
    "new_request",
    "new_salt",
    "options_from_json",
    "options_to_json",
    "pack_state",
    "parse_json",
    "parse_time",
    "payload_type",
    "plan",
    "plan_table",
    "prove_sample",
    "read_bounded",
    "receipt_heads",
    "receive",
    "rows_of_export",
    "save_document",
    "score_beside_reference",
    "sign_request",
    "tally",
    "to_canonical",
    "unpack_state",
    "unverified_statement",
    "verify_acknowledgement",
    "verify_ledger",
    "verify_receipt",
    "verify_request",
    "write_acknowledgement",
    "write_page",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'secede.erasure' has no attribute {name!r}")
    return getattr(import_module(f"secede.erasure.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
