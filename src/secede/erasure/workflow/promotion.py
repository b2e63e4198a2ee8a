"""The end of an erasure: the new model serves, what must go goes, the receipt is signed.

Every step may be done again after a kill and then changes nothing. Rows of the ledger are stamped
when they are first written, never before; the receipt takes its times from them. Before each thing
that cannot be undone the lease is renewed, so that nobody does it who lost it.
"""

from __future__ import annotations

from secede import files
from secede import state as states
from secede.erasure.documents.ledger_rows import (
    DeliveredBody,
    DestroyedBody,
    Head,
    ModelBody,
    ReceiptBody,
)
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.receipt import DestroyedItem, Statement
from secede.erasure.receipts.build import build_statement
from secede.erasure.receipts.page import write_page
from secede.erasure.receipts.verify import Verified, sign_receipt, verify_receipt
from secede.erasure.storage import progress as courses
from secede.erasure.storage.model_registry import Candidate, Model
from secede.erasure.storage.progress import Progress
from secede.erasure.types import format_time, parse_time
from secede.erasure.workflow.session import NAMES, ErasureSession
from secede.errors import RecordError, TrustError


def promote(desk: ErasureSession) -> None:
    """Put the verified model into service, retire the old one, destroy, sign, and end."""
    course, plan, step = desk.course, desk.plan, desk.step
    after = str(course.last.details["model"])
    desk.enter()  # whoever put it off may have been killed before the ledger had it
    if not is_promoted(desk, course):
        try:
            _rehearse(desk, course, plan)
        except TrustError as error:
            roll_back(desk, f"no receipt can be made out, so nothing is promoted: {error}"[:500])
            return
    model = _put_into_service(desk, course, plan, after)
    retired = _write_models(desk, model, plan)
    gone, head = _destroy(desk, course, plan, retired)
    signed = _issue(desk, model, gone, head)
    desk.move(
        courses.PROMOTED,
        {
            "plan": plan.digest(),
            "model": after,
            "method": step.method,
            "receipt": signed,
            "scalars": {"receipt": signed, "rung": step.rung},
        },
    )


def is_promoted(desk: ErasureSession, course: Progress) -> bool:
    """Return whether the verified model is in the registry already."""
    if course.last.state != courses.VERIFIED:
        return False
    return any(m.digest == course.last.details["model"] for m in desk.registry.models())


def roll_back(desk: ErasureSession, reason: str | None = None) -> None:
    """End without a new model: the one from before stays, what was tried is destroyed."""
    usual = "no rung is left; the model from before stays in service"
    _drop(desk, courses.ROLLED_BACK, reason or usual)


def refuse(desk: ErasureSession, reason: str) -> None:
    """End because the request cannot be done for."""
    _drop(desk, courses.REFUSED, reason)


def _drop(desk: ErasureSession, state: str, reason: str) -> None:
    course = desk.course
    desk.hold()
    desk.vault.destroy()
    desk.ground.roll_back()
    for what, digest in course.models:
        desk.write(DestroyedBody(request=course.entry.digest, what=what, digest=digest))
    scalars = {"given_up": len(course.failures)}
    desk.move(state, {"reason": reason, "scalars": scalars})


def _rehearse(desk: ErasureSession, course: Progress, plan: Plan) -> None:
    """Make the receipt out before anything is done for good; only its times are not the last."""
    now = format_time(desk.clock())
    carriers = _carriers(desk, plan)
    for model in carriers:
        files.check_single(desk.home.model(model.digest))
    things = _things(course, carriers)
    gone = [DestroyedItem(what, digest, now) for what, digest in things]
    statement = build_statement(
        course,
        plan,
        desk.request,
        promoted=now,
        completed=now,
        destroyed=gone,
        head=desk.ledger.head(),
    )
    _signed(desk, statement)


def _put_into_service(desk: ErasureSession, course: Progress, plan: Plan, after: str) -> Model:
    done = course.last.details
    if not desk.home.model(after).exists():
        states.save(desk.vault.get(done["state"])[0], desk.home.model(after))
    parent = next(m for m in desk.registry.models() if m.digest == plan.model)
    candidate = Candidate(
        digest=after,
        parent=plan.model,
        run=desk.run,
        round=parent.round + done["rounds"],
        clients=plan.retained,
    )
    desk.hold()
    return desk.registry.promote_erased(
        candidate, client=plan.client, request=course.entry.digest, now=desk.clock()
    )


def _carriers(desk: ErasureSession, plan: Plan) -> tuple[Model, ...]:
    """Return the models of the run that carry the client, out of use or not."""
    found = desk.registry.carriers(plan.client, retired=True)
    return tuple(model for model in found if model.run == desk.run)


def _write_models(desk: ErasureSession, model: Model, plan: Plan) -> tuple[Model, ...]:
    """Put into the ledger who serves, who is retired, and who received the new model."""
    retired = _carriers(desk, plan)
    for found in (model, *retired):
        desk.write(
            ModelBody(
                model=found.digest,
                parent=found.parent,
                run=found.run,
                round=found.round,
                status="serving" if found is model else "retired",
            )
        )
    for start in range(0, len(plan.retained), NAMES):
        names = plan.retained[start : start + NAMES]
        desk.write(DeliveredBody(model=model.digest, clients=names))
    return retired


def _things(course: Progress, retired: tuple[Model, ...]) -> list[tuple[str, str | None]]:
    """Return what is to be destroyed: key and digest."""
    done = course.last.details
    things: list[tuple[str, str | None]] = [
        (what, digest) for what, digest in course.models if digest != done["model"]
    ]
    things += [("model-before", model.digest) for model in retired]
    return things + [(what, None) for what in done["holdings"]]


def _destroy(
    desk: ErasureSession, course: Progress, plan: Plan, retired: tuple[Model, ...]
) -> tuple[list[DestroyedItem], Head]:
    """Delete what carried the leaver; return what that was, and the ledger's head after it."""
    desk.hold()
    desk.vault.destroy()
    for model in retired:
        desk.hold()
        files.delete(desk.home.model(model.digest))
    desk.hold()
    desk.returning(plan).save()
    desk.ground.settle(plan.client, course.last.details["trained_from"])
    gone, head = list[DestroyedItem](), desk.ledger.head()
    for what, digest in _things(course, retired):
        body = DestroyedBody(
            request=course.entry.digest,
            what=what,
            digest=digest,
            backups_until=plan.backups_until,
        )
        row = desk.write(body)
        gone.append(DestroyedItem(what, digest, row.at))
        head = row.head
    return gone, head


def _issue(desk: ErasureSession, model: Model, gone: list[DestroyedItem], head: Head) -> str:
    """Name the receipt in the ledger, write it and its page, and return its digest.

    The row comes first: whatever is killed after it makes the same receipt again, with its time.
    """
    request = desk.course.entry.digest
    known = desk.ledger.receipt_of(request)
    completed = format_time(desk.clock()) if known is None else known.at
    told = build_statement(
        desk.course,
        desk.plan,
        desk.request,
        promoted=model.added,
        completed=completed,
        destroyed=gone,
        head=head,
    )
    data, verified = _signed(desk, told)
    body = _body(told, verified.digest)
    if known is None:
        desk.hold()
        known = desk.ledger.append("receipt", body, parse_time(completed))
        desk.note_head()
    if known.at != completed or known.body != body.model_dump(mode="json"):
        raise RecordError(
            "the ledger names another receipt for this request than the one that follows from the "
            "journal: one of them was altered; restore both from a backup"
        )
    path = desk.home.receipt(request)
    if not path.exists():
        files.write_bytes(path, data)
    with files.lock_folder(path.parent):  # somebody may be countersigning what a kill left there
        kept = _kept(desk, verified.digest)
        if kept is None:
            files.write_bytes(path, data)
        write_page(kept or verified, path)
    return verified.digest


def _signed(desk: ErasureSession, told: Statement) -> tuple[bytes, Verified]:
    data = sign_receipt(told, desk.key)
    return data, verify_receipt(data, desk.home.keyring())


def _kept(desk: ErasureSession, digest: str) -> Verified | None:
    """Return the receipt that lies there already, if it is this one: it may be countersigned."""
    path = desk.home.receipt(desk.course.entry.digest)
    if not path.exists():
        return None
    try:
        signers = desk.home.signers()
        found = verify_receipt(path.read_bytes(), signers.keys, auditors=signers.auditors)
    except TrustError:
        return None
    return found if found.digest == digest else None


def _body(told: Statement, digest: str) -> ReceiptBody:
    said = told.predicate
    return ReceiptBody(
        request=said.request.digest,
        receipt=digest,
        before=said.models.before,
        after=said.models.after,
        rung=said.method.rung,
        method=said.method.name,
        forgotten=said.verification.forgotten,
        useful=said.verification.useful,
    )
