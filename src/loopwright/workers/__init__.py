"""Calls the user's functions in worker processes with a deadline. Other rooms know what the functions mean."""

from loopwright.workers.choice_blame import ChoiceBlame
from loopwright.workers.user_function import WHY_WORKERS_DIE, Blame, FunctionHolder, UserFunction

__all__ = ["WHY_WORKERS_DIE", "Blame", "ChoiceBlame", "FunctionHolder", "UserFunction"]
