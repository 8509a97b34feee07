"""What this machine and this installation can do: facts from bounded probes, and advice computed from them alone.

Nothing heavy is imported here: torch is tried in a child process, because it may die there.
"""

from loopwright.doctor.advice import Advice, Severity, advise
from loopwright.doctor.facts import Facts
from loopwright.doctor.probes import examine

__all__ = ["Advice", "Facts", "Severity", "advise", "examine"]
