"""Functions of the user's own, called in worker processes with a deadline. What they mean is for others to know."""

from loopwright.workers.choice_blame import ChoiceBlame
from loopwright.workers.user_function import WHY_WORKERS_DIE, Blame, FunctionHolder, UserFunction

__all__ = ["WHY_WORKERS_DIE", "Blame", "ChoiceBlame", "FunctionHolder", "UserFunction"]
