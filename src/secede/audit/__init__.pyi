from .ranks import Ranks as Ranks
from .ranks import win_p_value as win_p_value
