from .judged import Judged as Judged
from .judged import judge as judge
from .page import Subject as Subject
from .page import write_audit_page as write_audit_page
