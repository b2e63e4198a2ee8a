from .entry import Entry as Entry
from .mapstyle import as_samples as as_samples
from .samples import Dataset as Dataset
from .samples import Samples as Samples
