from .round_log import Contribution as Contribution
from .round_log import OpenedSums as OpenedSums
from .round_log import RoundLog as RoundLog
from .round_log import config_from_json as config_from_json
from .round_log import config_to_json as config_to_json
from .store import Store as Store
from .training_state import TrainingState as TrainingState
