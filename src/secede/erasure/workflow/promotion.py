"""The end of an erasure: the new model serves, the old ones are deleted, the receipt is signed.

Every step may be done again after a kill and then changes nothing. Rows of the ledger get their
time when they are first written; the receipt takes its times from them. Before each thing
that cannot be undone the lease is renewed, so that nobody does it who lost it.
"""

from __future__ import annotations

from pathlib import Path

from secede import files
from secede import state as states
from secede.erasure.documents import DestroyedBody, DestroyedItem, Head, ModelBody, federation_part
from secede.erasure.receipts import (
    Verified,
    build_statement,
    sign_receipt,
    verify_receipt,
    write_page,
)
from secede.erasure.storage import (
    MAX_REASON,
    Candidate,
    ClosingDetails,
    Model,
    PromotionDetails,
    RefusalDetails,
    RollbackDetails,
    VerificationDetails,
)
from secede.erasure.types import format_time, parse_time
from secede.erasure.workflow.session import ErasureSession, delivered_rows
from secede.errors import RecordError, TrustError


def promote(session: ErasureSession) -> None:
    """Put the verified model into service, retire the old one, destroy, sign, and end."""
    plan, step, verified = session.plan, session.step, session.progress.verification
    session.append_request_rows()  # an extension may have been killed before the ledger
    if not is_promoted(session):
        try:
            _rehearse(session, verified)
        except TrustError as error:
            reason = f"the receipt cannot be built, so the model is not promoted: {error}"
            roll_back(session, reason[:MAX_REASON])
            return
    model = _put_into_service(session, verified)
    retired = _append_model_rows(session, model)
    destroyed, head = _destroy(session, verified, retired)
    receipt = _issue(session, model, destroyed, head)
    session.advance(
        PromotionDetails(
            plan=plan.digest(),
            model=verified.model,
            rung=step.rung,
            method=step.method,
            receipt=receipt,
        )
    )


def is_promoted(session: ErasureSession) -> bool:
    """Return whether the verified model is in the registry already."""
    details = session.progress.last.details
    if not isinstance(details, VerificationDetails):
        return False
    return any(model.digest == details.model for model in session.registry.models())


def roll_back(session: ErasureSession, reason: str | None = None) -> None:
    """End without a new model: the one from before stays, what was tried is destroyed."""
    usual = "no rung is left; the model from before stays in service"
    failed = len(session.progress.failures)
    _close(session, RollbackDetails(reason=reason or usual, failed_rungs=failed))


def refuse(session: ErasureSession, reason: str, *, withdrawn: bool = False) -> None:
    """End because the request cannot be carried out, or its client has withdrawn it."""
    failed = len(session.progress.failures)
    _close(session, RefusalDetails(reason=reason, failed_rungs=failed, withdrawn=withdrawn))


def _close(session: ErasureSession, details: ClosingDetails) -> None:
    progress = session.progress
    session.renew_lease()
    session.state_files.destroy()
    session.backend.roll_back()
    for what, digest in progress.models:
        session.append_row(DestroyedBody(request=progress.entry.digest, what=what, digest=digest))
    session.advance(details)


def _rehearse(session: ErasureSession, verified: VerificationDetails) -> None:
    """Make a draft of the receipt before anything is done for good; only its times will change."""
    now = format_time(session.clock())
    carriers = _carriers(session)
    for model in carriers:
        files.check_single(session.home.model_path(model.digest))
    session.state_files.check()
    for path in session.backend.files_to_destroy(session.plan.client):
        files.check_single(path)
    items = _items_to_destroy(session, verified, carriers)
    destroyed = [DestroyedItem(what, digest, now) for what, digest in items]
    head = session.ledger.head()
    _, draft = _sign(session, promoted=now, completed=now, destroyed=destroyed, head=head)
    _read_receipt(session, session.home.receipt_path(session.progress.entry.digest), draft.digest)


def _put_into_service(session: ErasureSession, verified: VerificationDetails) -> Model:
    plan, path = session.plan, session.home.model_path(verified.model)
    if not path.exists():
        states.save(session.state_files.get(verified.state_file)[0], path)
    parent = next(m for m in session.registry.models() if m.digest == plan.model)
    candidate = Candidate(
        digest=verified.model,
        parent=plan.model,
        run=session.run,
        round=parent.round + verified.rounds,
        clients=plan.retained,
    )
    session.renew_lease()
    request = session.progress.entry.digest
    return session.registry.promote_erased(
        candidate, client=plan.client, request=request, now=session.clock()
    )


def _carriers(session: ErasureSession) -> tuple[Model, ...]:
    """Return the models of the run that carry the client, out of use or not."""
    models = session.registry.carriers(session.plan.client, retired=True)
    return tuple(model for model in models if model.run == session.run)


def _append_model_rows(session: ErasureSession, serving: Model) -> tuple[Model, ...]:
    """Enter into the ledger who serves, who is retired, and who received the new model."""
    retired = _carriers(session)
    for model in (serving, *retired):
        session.append_row(
            ModelBody(
                model=model.digest,
                parent=model.parent,
                run=model.run,
                round=model.round,
                status="serving" if model is serving else "retired",
            )
        )
    for body in delivered_rows(serving.digest, session.plan.retained):
        session.append_row(body)
    return retired


def _items_to_destroy(
    session: ErasureSession, verified: VerificationDetails, retired: tuple[Model, ...]
) -> list[tuple[str, str | None]]:
    """Return what is to be destroyed: key and digest."""
    items: list[tuple[str, str | None]] = [
        (what, digest) for what, digest in session.progress.models if digest != verified.model
    ]
    items += [("model-before", model.digest) for model in retired]
    return items + [(what, None) for what in verified.holdings]


def _destroy(
    session: ErasureSession, verified: VerificationDetails, retired: tuple[Model, ...]
) -> tuple[list[DestroyedItem], Head]:
    """Delete what carried the leaver; return what that was, and the ledger's head after it."""
    plan = session.plan
    session.renew_lease()
    session.state_files.destroy()
    for model in retired:
        session.renew_lease()
        files.delete(session.home.model_path(model.digest))
    session.renew_lease()
    for body in session.replay_detector().save():
        session.append_row(body)
    session.backend.commit(plan.client, verified.trained_from)
    destroyed, head = list[DestroyedItem](), session.ledger.head()
    for what, digest in _items_to_destroy(session, verified, retired):
        row = session.append_row(
            DestroyedBody(
                request=session.progress.entry.digest,
                what=what,
                digest=digest,
                backups_until=plan.backups_until,
            )
        )
        destroyed.append(DestroyedItem(what, digest, row.at))
        head = row.head
    return destroyed, head


def _issue(
    session: ErasureSession, model: Model, destroyed: list[DestroyedItem], head: Head
) -> str:
    """Name the receipt in the ledger, write it and its page, and return its digest.

    The row comes first: whatever is killed after it makes the same receipt again, with its time.
    """
    request = session.progress.entry.digest
    row = session.ledger.receipt_of(request)
    completed = format_time(session.clock()) if row is None else row.at
    data, receipt = _sign(
        session, promoted=model.added, completed=completed, destroyed=destroyed, head=head
    )
    body = receipt.ledger_row()
    if row is None:
        session.renew_lease()
        row = session.ledger.append(body, parse_time(completed))
        session.save_ledger_head()
    if row.at != completed or row.document != body:
        raise RecordError(
            "the ledger names another receipt for this request than the one that follows from the "
            "journal: one of them was altered; restore both from a backup"
        )
    path = session.home.receipt_path(request)
    files.make_folder(path.parent)
    with files.lock_folder(path.parent):  # somebody may be countersigning what a kill left there
        countersigned = _read_receipt(session, path, receipt.digest)
        if countersigned is None:
            files.write_bytes(path, data)
        write_page(countersigned or receipt, path)
    return receipt.digest


def _sign(
    session: ErasureSession,
    *,
    promoted: str,
    completed: str,
    destroyed: list[DestroyedItem],
    head: Head,
) -> tuple[bytes, Verified]:
    """Return the signed receipt, and what its verification gives."""
    statement = build_statement(
        session.progress,
        session.plan,
        session.request,
        promoted=promoted,
        completed=completed,
        destroyed=destroyed,
        head=head,
        federation=federation_part(session.ledger.rows(), session.progress.entry.digest),
        key=session.journal.signing_key(session.number),
    )
    data = sign_receipt(statement, session.key)
    return data, verify_receipt(data, session.home.keyring())


def _read_receipt(session: ErasureSession, path: Path, digest: str) -> Verified | None:
    """Return the receipt that lies there already, if it is this one: it may be countersigned.

    RecordError if it is a valid one for another request: that is never replaced.
    """
    if not path.exists():
        return None
    try:
        signers = session.home.signers()
        receipt = verify_receipt(path.read_bytes(), signers.keys, auditors=signers.auditors)
    except TrustError:
        return None
    about = receipt.statement.predicate.request
    if about.digest != session.progress.entry.digest:
        raise RecordError(
            f"{path} is a valid receipt of {about.client!r} for another request and is not "
            "replaced: move it to the name of its own request, and start again"
        )
    return receipt if receipt.digest == digest else None
