from . import state as state
from .data.mapstyle import as_samples as as_samples
from .data.samples import Dataset as Dataset
from .data.samples import Samples as Samples
from .errors import SecedeError as SecedeError
from .federation.engine import LocalTraining as LocalTraining
from .federation.engine import aggregate as aggregate
from .federation.simulator import Simulator as Simulator
from .state import digest as digest
from .state import distance as distance
from .state import project as project
from .state import reference as reference
from .unlearning.api import unlearn as unlearn
from .unlearning.method import LocalReport as LocalReport
from .unlearning.method import LocalResult as LocalResult
from .unlearning.methods.projected_ascent import ProjectedAscent as ProjectedAscent
from .unlearning.methods.second_choice import SecondChoice as SecondChoice
from .unlearning.post_training_hold import without_return as without_return

__all__: list[str]
__version__: str
