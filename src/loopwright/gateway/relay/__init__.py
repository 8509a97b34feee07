"""Workers that dial out to the gateway: the frames on their connections, the gateway's side and the worker's side.
What the requests in the frames mean is not known here."""
