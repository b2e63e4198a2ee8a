from .bounds import epsilon_lower_bound as epsilon_lower_bound
from .bounds import interval as interval
from .bounds import lower_bound as lower_bound
from .bounds import upper_bound as upper_bound
from .ranks import Ranks as Ranks
from .ranks import win_p_value as win_p_value
