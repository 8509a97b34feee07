"""Agent loops, and the policy through which they reach the model."""

from loopwright.agents.custom import load_agent
from loopwright.agents.policy import EnginePolicy
from loopwright.agents.single_turn import SingleTurn

__all__ = ["EnginePolicy", "SingleTurn", "load_agent"]
