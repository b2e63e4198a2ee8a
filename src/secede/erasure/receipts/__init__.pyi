from .build import build_statement as build_statement
from .build import client_scope as client_scope
from .page import write_page as write_page
from .verify import Verified as Verified
from .verify import sign_receipt as sign_receipt
from .verify import verify_receipt as verify_receipt
