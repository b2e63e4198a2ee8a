"""The end of an erasure: the new model serves, what must go goes, the receipt is signed.

Every step may be done again after a kill and then changes nothing. Times come from what was
written down first, so that the receipt is the same to the byte however often it is made.
"""

from __future__ import annotations

from datetime import datetime

from secede import files
from secede import state as states
from secede.erasure import certificate, issuing, receipt
from secede.erasure import course as courses
from secede.erasure.bodies import DeliveredBody, DestroyedBody, ModelBody, ReceiptBody
from secede.erasure.chain import Head
from secede.erasure.course import Course
from secede.erasure.desk import NAMES, Desk
from secede.erasure.fields import moment
from secede.erasure.issuing import Gone
from secede.erasure.plan import Plan
from secede.erasure.registry import Candidate, Model
from secede.erasure.statement import Statement
from secede.errors import StorageError


def promote(desk: Desk) -> None:
    """Put the verified model into service, retire the old one, destroy, sign, and end."""
    course, plan, step = desk.course, desk.plan, desk.step
    done = course.last.details
    after = str(done["model"])
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
    model = desk.registry.promote_erased(
        candidate, client=plan.client, request=course.entry.digest, now=desk.clock()
    )
    completed = moment(model.added)
    retired = _write_models(desk, model, plan, completed)
    gone, head = _destroy(desk, course, plan, retired, completed)
    signed = _sign(desk, issuing.statement(desk, model, gone, head), completed)
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


def roll_back(desk: Desk) -> None:
    """End without a new model: the one from before stays, what was tried is destroyed."""
    reason = "no rung is left; the model from before stays in service"
    _drop(desk, courses.ROLLED_BACK, reason)


def refuse(desk: Desk, reason: str) -> None:
    """End because the request cannot be done for."""
    _drop(desk, courses.REFUSED, reason)


def _drop(desk: Desk, state: str, reason: str) -> None:
    course = desk.course
    desk.vault.destroy()
    desk.ground.roll_back()
    for what, digest in course.models:
        body = DestroyedBody(request=course.entry.digest, what=what, digest=digest)
        desk.ledger.append_once("destroyed", body, desk.clock())
    scalars = {"given_up": len(course.failures)}
    desk.move(state, {"reason": reason, "scalars": scalars})


def _write_models(desk: Desk, model: Model, plan: Plan, at: datetime) -> tuple[Model, ...]:
    """Put into the ledger who serves, who is retired, and who received the new model."""
    retired = desk.registry.carriers(plan.client, retired=True)
    retired = tuple(m for m in retired if m.run == desk.run)
    for found in (model, *retired):
        body = ModelBody(
            model=found.digest,
            parent=found.parent,
            run=found.run,
            round=found.round,
            status="serving" if found is model else "retired",
        )
        desk.ledger.append_once("model", body, at)
    for start in range(0, len(plan.retained), NAMES):
        names = plan.retained[start : start + NAMES]
        desk.ledger.append_once("delivered", DeliveredBody(model=model.digest, clients=names), at)
    return retired


def _destroy(
    desk: Desk, course: Course, plan: Plan, retired: tuple[Model, ...], at: datetime
) -> tuple[list[Gone], Head]:
    """Delete what carried the leaver; return what that was, and the ledger's head after it."""
    done = course.last.details
    desk.vault.destroy()
    things: list[tuple[str, str | None]] = [
        (what, digest) for what, digest in course.models if digest != done["model"]
    ]
    for model in retired:
        try:
            desk.home.model(model.digest).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete a retired model: {error.strerror}") from error
        things.append(("model-before", model.digest))
    desk.ground.settle(plan.client, done["trained_from"])
    things += [(what, None) for what in done["holdings"]]
    gone, head = list[Gone](), desk.ledger.head()
    for what, digest in things:
        body = DestroyedBody(
            request=course.entry.digest,
            what=what,
            digest=digest,
            backups_until=plan.backups_until,
        )
        row = desk.ledger.append_once("destroyed", body, at)
        gone.append(Gone(what, digest, row.at))
        head = row.head
    return gone, head


def _sign(desk: Desk, statement: Statement, at: datetime) -> str:
    """Write the signed receipt and its page, name it in the ledger, and return its digest."""
    told = statement.predicate
    data = receipt.sign(statement, desk.key)
    path = desk.home.receipt(told.request.digest)
    verified = receipt.verify(data, desk.home.keyring())
    files.write_bytes(path, data)
    certificate.write(verified, path)
    body = ReceiptBody(
        request=told.request.digest,
        receipt=verified.digest,
        before=told.models.before,
        after=told.models.after,
        rung=told.method.rung,
        forgotten=told.verification.forgotten,
        useful=told.verification.useful,
    )
    desk.ledger.append_once("receipt", body, at)
    return verified.digest
