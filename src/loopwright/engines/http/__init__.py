"""An engine over HTTP, with vLLM's routes: the server in front of an embedded engine, the client, and the process."""
