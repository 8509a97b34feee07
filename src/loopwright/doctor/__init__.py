"""Finds out what this machine and this installation can do. Probes with a time limit collect facts, and advice is
computed from the facts only.

Nothing heavy is imported here. torch is tried in a child process, because it may kill its process.
"""

from loopwright.doctor.advice import Advice, Severity, advise
from loopwright.doctor.facts import Facts
from loopwright.doctor.probes import examine

__all__ = ["Advice", "Facts", "Severity", "advise", "examine"]
