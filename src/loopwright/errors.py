"""Every error that Loopwright raises on purpose, in one tree.

    LoopwrightError                something is wrong, and here is what to do about it
    ├── ConfigError                the configuration cannot run; lists every problem at once
    ├── DataError                  a task source is missing or malformed (names file and line)
    ├── ModelError                 a model or tokenizer cannot be loaded or is not supported
    ├── ChainError                 token streams that could not have come from one context
    ├── EngineError                generation failed for reasons of infrastructure: worth a retry
    │   ├── EngineLostError        an engine cannot be reached: it died, or the connection broke
    │   ├── ProofError             an engine does not compute what the learner's weights compute
    │   ├── UnanswerableError      no engine can answer the request as it is
    │   │   ├── ConstraintError    the form that an answer is to have cannot be kept
    │   │   └── AlternativesError  the engine cannot tell which other tokens were likely
    │   ├── ToolServerError        a server of tools did not start, or died under a rollout
    │   ├── WorkerLostError        a rollout worker cannot be reached, or is silent
    │   ├── TrialLostError         a trial of Harbor lost its sandbox or its model
    │   ├── AgentServerError       an agent server cannot be reached, is full, or has lost a trial
    │   └── InterruptionError      the engine was paused and gave back what it had: the rollout goes on from there
    ├── OutOfTimeError             a model call took all the time that its caller had left
    ├── ContextError               a task's prompt does not fit the model's context: no retry can help
    ├── AgentError                 the user's agent raised
    │   ├── ConversationError      it asked with messages that the model's chat template refuses
    │   ├── NoModelCallError       it ended without an answer of the model
    │   └── ProgramError           it is a program, and it failed
    │       └── ProgramLimitError  it used more memory, processes or disk than it may
    ├── SetupError                 the place for an agent that is a program could not be set up
    ├── VerifierError              a program's reward could not be read
    ├── JudgeError                 the user's judger raised, timed out or returned no number
    ├── FilterError                the user's filter raised, timed out or said neither yes nor no
    ├── MetricError                an evaluation's metric raised, or had nothing to measure
    ├── LearnerError               a train step went wrong, and its update was not made
    │   └── LearnerLostError       a rank of the learner died or is silent: the run goes on from its last checkpoint
    ├── WeightsError               weights could not be handed over; the engines keep what they have
    ├── RemoteError                code in another process raised something that could not be sent as it is
    ├── RefusedError               a request to one of our servers cannot be served as it is
    ├── LeaseError                 another run holds the server that this one wants to use
    ├── BudgetError                the run can make no progress, and stops instead of spinning
    │   └── ClusterRoomError       no room on the cluster for actors whose work nobody else does
    ├── DeviceError                a device can compute nothing more: only a new process can go on
    ├── StalledError               nothing moves any more, and the run stops instead of hanging
    ├── BenchError                 a benchmark cannot be run: no checkout, no peer, or a process that died
    └── RunError                   a run folder or checkpoint cannot be used as asked
        ├── RunLockedError         another process is using the folder
        ├── ConfigChangedError     resuming with a config that differs from the run's
        └── CheckpointError        a checkpoint is missing, damaged or of another kind

Each carries a `remedy`: the next thing the reader should do. All of them survive pickling, so that an error
raised in a worker process arrives whole.
"""

from __future__ import annotations

from typing import Any


class LoopwrightError(Exception):
    """Base of the tree. `facts` holds machine-readable details such as a file, a line or a judger's name."""

    def __init__(self, message: str, *, remedy: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The attributes travel as well: `add_note` keeps its notes there.
        return _rebuild, (type(self), self.message, self.remedy, self.facts), self.__dict__


def _rebuild(kind: type[LoopwrightError], message: str, remedy: str, facts: dict[str, Any]) -> LoopwrightError:
    return kind(message, remedy=remedy, **facts)


class ConfigError(LoopwrightError):
    """The configuration cannot run. `facts["problems"]` holds one line per problem, each with its remedy."""


class DataError(LoopwrightError):
    """A task source is missing or malformed."""


class ModelError(LoopwrightError):
    """A model or tokenizer cannot be loaded, or its architecture is not supported."""


class ChainError(LoopwrightError):
    """Token streams that do not align, or do not come from one context."""


class EngineError(LoopwrightError):
    """Generation failed for reasons of infrastructure. A rollout that meets it is retried."""


class EngineLostError(EngineError):
    """An engine cannot be reached any more. What it had already sent is sound."""


class ProofError(EngineError):
    """An engine computes something else than the learner's weights do (W1). It must not serve."""


class UnanswerableError(EngineError):
    """No engine can answer the request as it is, for example because it holds a token that the model does not have. It
    says nothing about the engine, and another engine need not be asked."""


class ConstraintError(UnanswerableError):
    """The form that an answer is to have cannot be kept: its schema is wrong or not supported, or the engine or the
    model's renderer cannot do it."""


class AlternativesError(UnanswerableError):
    """The engine cannot tell which other tokens were likely, or only those of another distribution than it reports
    logprobs of (T8)."""


class TrialLostError(EngineError):
    """A trial of Harbor lost its sandbox, or could not reach its model."""


class InterruptionError(EngineError):
    """The engine was paused in the middle of an answer. What it had sampled is recorded, and the rollout goes on from
    there."""


class ToolServerError(EngineError):
    """A server of tools did not start, or died under a rollout: as with the engine, another attempt may do."""


class WorkerLostError(EngineError):
    """A rollout worker cannot be reached any more, or has been silent for too long. Another attempt may succeed."""


class AgentServerError(EngineError):
    """An agent server cannot be reached, takes no trial now, or has lost one. Another attempt may succeed, there or on
    another server. `facts["status"]` is the HTTP status of its answer, and 0 if there was none."""


class OutOfTimeError(LoopwrightError):
    """A model call took all the time that its caller had left. The caller decides what that means for its rollout."""


class ContextError(LoopwrightError):
    """A task's prompt does not fit the model's context. Another attempt would meet the same."""


class AgentError(LoopwrightError):
    """The user's agent raised."""


class ConversationError(AgentError):
    """Messages that the model's chat template refuses: say, roles in an order that it does not know."""


class NoModelCallError(AgentError):
    """The agent ended without an answer of the model: there is nothing to grade and nothing to train on."""


class ProgramError(AgentError):
    """An agent that is a program failed: it ended with an exit code that means so, or was killed."""


class ProgramLimitError(ProgramError):
    """A program used more memory, processes or disk than it may, and was ended."""


class SetupError(LoopwrightError):
    """The place for a program could not be set up: a folder is missing, or the program cannot be started."""


class VerifierError(LoopwrightError):
    """The reward of a program could not be read: its verifier crashed, or there is no finite number."""


class JudgeError(LoopwrightError):
    """The user's judger raised, ran past its deadline, or returned something that is not a number."""


class FilterError(LoopwrightError):
    """The user's filter raised, ran past its deadline, or returned neither True nor False."""


class MetricError(LoopwrightError):
    """A metric of an evaluation raised, returned no number, or had nothing to measure. The rollouts are sound."""


class LearnerError(LoopwrightError):
    """A train step went wrong, and its update was not made. The last checkpoint is sound."""


class LearnerLostError(LearnerError):
    """A rank of the learner died, or has been silent for too long, so its weights are gone. Every call of a learner
    raises it, and so does a run that ends by it: no restart is left. `facts` has the `rank`, the `cause`, and the
    `last_words` of its log."""

    @classmethod
    def of_rank(cls, rank: int, cause: str, last_words: str) -> LearnerLostError:
        words = f"; its last words:\n{last_words}" if last_words else ""
        return cls(
            f"rank {rank} of the learner is lost: {cause}{words}",
            remedy="the run has ended: mend the cause, and the same command goes on from the last checkpoint, or "
            "begins again if there is none",
            rank=rank,
            cause=cause,
            last_words=last_words,
        )


class WeightsError(LoopwrightError):
    """Weights could not be written, or are not what their manifest says. The engines keep the weights they have."""


class RemoteError(LoopwrightError):
    """Code in another process (an actor, a rank of the learner) raised something that could not be sent as it is.
    `facts["trace"]` is its traceback."""


class RefusedError(LoopwrightError):
    """A request to one of our servers cannot be served as it is. `facts["status"]` is the HTTP status of the answer."""


class LeaseError(LoopwrightError):
    """Another run holds the server that this one wants to use, or has taken it over."""


class BudgetError(LoopwrightError):
    """The run can make no progress (every group fails): it stops and says why."""


class ClusterRoomError(BudgetError):
    """An actor has waited for room on the cluster for as long as it may, and no other one does its work."""


class StalledError(LoopwrightError):
    """Nothing moved for too long; the message says who waits on whom. `facts["waits_for"]` is what was waited for."""


class BenchError(LoopwrightError):
    """A benchmark cannot be run: there is no checkout or no peer, or one of its processes died."""


class DeviceError(LoopwrightError):
    """A device can compute nothing more in this process. Nothing on it can be saved, so a new process must go on."""


class RunError(LoopwrightError):
    """A run folder or checkpoint cannot be used as asked."""


class RunLockedError(RunError):
    """Another process is using the run folder."""


class ConfigChangedError(RunError):
    """The config differs from the one that the run was started with."""


class CheckpointError(RunError):
    """A checkpoint is missing, damaged, or belongs to another kind of run."""
