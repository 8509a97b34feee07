"""Functions of the user's own, called in worker processes with a deadline. What they mean is for others to know."""

from loopwright.workers.user_function import Blame, FunctionHolder, UserFunction

__all__ = ["Blame", "FunctionHolder", "UserFunction"]
