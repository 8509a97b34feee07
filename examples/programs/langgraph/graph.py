"""An agent that is a LangGraph graph: one node asks the model, one looks at the form of its answer, and if that is no
number, an edge leads back.

It reads a question from its standard input and writes the answer to a file. Where the model is, ChatOpenAI learns from
OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

MOST_ANSWERS = 2

model = ChatOpenAI(model=os.environ["OPENAI_MODEL"])


def ask(state: MessagesState) -> MessagesState:
    return {"messages": [model.invoke(state["messages"])]}


def remind(state: MessagesState) -> MessagesState:
    return {"messages": [HumanMessage("Answer with the number only.")]}


def next_step(state: MessagesState) -> str:
    answers = [message for message in state["messages"] if isinstance(message, AIMessage)]
    is_number = answers[-1].text.strip().removesuffix(".").isdecimal()
    return END if is_number or len(answers) == MOST_ANSWERS else "remind"


graph = StateGraph(MessagesState)
graph.add_node("ask", ask)
graph.add_node("remind", remind)
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", next_step)
graph.add_edge("remind", "ask")

if __name__ == "__main__":
    state = graph.compile().invoke({"messages": [HumanMessage(sys.stdin.read().strip())]})
    Path("answer.txt").write_text(state["messages"][-1].text, "utf-8")
