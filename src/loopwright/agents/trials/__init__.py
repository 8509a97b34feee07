"""A run's side of agent servers: what a trial is on the wire, the client of one server, and the choice among several.
The server itself is in `agent_server`."""
